// Holds a precompiled header that other targets reuse.
