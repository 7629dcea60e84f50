// For the libraries that call CUDA: a call's outcome as their tables give it, 0 or 1, and the text
// of the calling thread's last failure. Each library has texts of its own.
#ifndef WEFT_COLLECTIVES_CUDA_CUDA_CALL_H_
#define WEFT_COLLECTIVES_CUDA_CUDA_CALL_H_

#include <cuda_runtime.h>

#include <cstdio>

namespace weft::cuda {

inline thread_local char last_error[512] = "";

inline const char* LastError() { return last_error; }

inline int Fail(const char* call, const char* reason) {
  std::snprintf(last_error, sizeof last_error, "%s: %s", call, reason);
  return 1;
}

inline int Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return 0;
  cudaGetLastError();  // a sticky error is not reported twice
  return Fail(call, cudaGetErrorString(error));
}

}  // namespace weft::cuda

#define WEFT_CALL(function, ...) Check(function(__VA_ARGS__), #function)

#endif  // WEFT_COLLECTIVES_CUDA_CUDA_CALL_H_
