// Reads dictd's edition of GCIDE, the GNU Collaborative International Dictionary of English, as
// English: one document an entry, one line a sense. Left out are pronunciations, etymologies, the
// names of the sources ("[1913 Webster]") and the braces around cross references; letters written
// as codes ("[ae]", "['e]") become letters.
#ifndef WEFT_TRAINER_DATA_GCIDE_H_
#define WEFT_TRAINER_DATA_GCIDE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::train {

// `text` is the whole unpacked dictionary, UTF-8.
std::vector<std::string> CleanGcide(absl::string_view text);

// One entry, from its head word to the line before the next one.
std::string CleanGcideEntry(absl::string_view entry);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_GCIDE_H_
