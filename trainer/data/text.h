// Plain text as it comes in: gunzip, make valid UTF-8, cut into documents.
#ifndef WEFT_TRAINER_DATA_TEXT_H_
#define WEFT_TRAINER_DATA_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"

namespace weft::train {

// The whole file. One that starts with gzip's magic (.gz, dictd's .dz) is unpacked; several members
// in a row are joined. DataLoss for a damaged or truncated archive; ResourceExhausted for more than
// `size_max` bytes of text: a megabyte of gzip can hold a gigabyte of zeros.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, Bytes size_max);

// Each maximal ill-formed part (Unicode 15, section 3.9, table 3-7: also surrogates, overlong forms
// and zero bytes) becomes U+FFFD. Returns how many there were.
int64_t ReplaceInvalidUtf8(std::string& text);

enum class DocumentSplit {
  kBlankLines,  // one or more lines of nothing but white space
  kLines,       // every line a document
  kFile,        // the whole file
};
absl::StatusOr<DocumentSplit> ParseDocumentSplit(absl::string_view name);

// Views into `text`, without surrounding line breaks; empty documents are left out.
std::vector<absl::string_view> SplitDocuments(absl::string_view text, DocumentSplit split);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_TEXT_H_
