// The library is the archive of weft_nccl; a CMake target wants a source of its own.
