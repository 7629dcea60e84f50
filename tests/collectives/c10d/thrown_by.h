// What a test of the backend expects to be thrown.
#ifndef WEFT_TESTS_COLLECTIVES_C10D_THROWN_BY_H_
#define WEFT_TESTS_COLLECTIVES_C10D_THROWN_BY_H_

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace weft::collectives {

// The text of what `body` throws; empty when it does not.
inline std::string ThrownBy(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_C10D_THROWN_BY_H_
