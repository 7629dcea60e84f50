// The library is the archive of weft_torch_plugin; a CMake target wants a source of its own.
