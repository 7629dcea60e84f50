// The memory that a store may take, all of its jobs, clients and connections together, and texts
// that are charged to it for as long as they are referenced: a value, and a reply that carries it
// to many clients, are charged once. Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_BUDGET_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_BUDGET_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/units.h"

namespace weft::collectives {

// Bytes that a string has beside itself.
inline Bytes HeapBytes(const std::string& text) {
  constexpr size_t kInPlace = 15;
  return Bytes(text.capacity() > kInPlace ? static_cast<int64_t>(text.capacity() + 1) : 0);
}

struct StoreBudget {
  Bytes limit;
  Bytes used;
  // False while a journal is read: what is in it was accepted, whatever else was here then.
  bool refuses = true;

  Bytes room() const { return limit - used; }
  // kResourceExhausted: there is no room for so many bytes, for `what`.
  absl::Status Check(Bytes wanted, absl::string_view what) const {
    if (!refuses || wanted <= room()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the store is full: it holds ", used.count(),
                                                     " of ", limit.count(), " bytes, and ", what,
                                                     " needs ", wanted.count(), " more"));
  }
};

class ChargedText {
 public:
  ChargedText(std::shared_ptr<StoreBudget> budget, std::string text)
      : budget_(std::move(budget)), text_(std::move(text)) {
    Charge();
  }
  ~ChargedText() { budget_->used -= charged_; }
  ChargedText(const ChargedText&) = delete;
  ChargedText& operator=(const ChargedText&) = delete;

  const std::string& text() const { return text_; }
  // change(std::string&): while no other reference to it exists.
  template <typename Change>
  void Edit(Change change) {
    change(text_);
    Charge();
  }

 private:
  void Charge() {
    // With its own block of memory and what counts its holders.
    const Bytes now = HeapBytes(text_) + Bytes(sizeof(ChargedText) + 4 * sizeof(void*));
    budget_->used += now - std::exchange(charged_, now);
  }

  const std::shared_ptr<StoreBudget> budget_;
  std::string text_;
  Bytes charged_;
};

// As replies carry it.
inline std::shared_ptr<const std::string> BodyOf(const std::shared_ptr<ChargedText>& text) {
  return {text, &text->text()};
}
inline std::shared_ptr<const std::string> ChargedBody(const std::shared_ptr<StoreBudget>& budget,
                                                      std::string text) {
  return BodyOf(std::make_shared<ChargedText>(budget, std::move(text)));
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_BUDGET_H_
