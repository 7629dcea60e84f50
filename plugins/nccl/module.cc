// The library is weft_nccl's objects; a CMake target wants a source of its own.
