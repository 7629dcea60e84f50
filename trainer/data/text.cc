#include "trainer/data/text.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr absl::string_view kGzipMagic = "\x1f\x8b";
constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

// Frees zlib's state on every return path.
struct Inflater {
  z_stream stream{};
  bool started = false;
  ~Inflater() {
    if (started) inflateEnd(&stream);
  }
};

absl::StatusOr<std::string> Gunzip(const std::string& path, absl::string_view packed,
                                   Bytes size_max) {
  Inflater inflater;
  z_stream& stream = inflater.stream;
  // 16: a gzip header is expected; 15: the largest window.
  inflater.started = inflateInit2(&stream, 16 + 15) == Z_OK;
  if (!inflater.started) return absl::InternalError("zlib does not start");
  std::string text;
  std::vector<char> chunk(kChunk);
  const char* next = packed.data();
  size_t left = packed.size();
  while (true) {
    auto give = static_cast<uInt>(std::min(left, kChunk));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next));
    stream.avail_in = give;
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    int result = inflate(&stream, Z_NO_FLUSH);
    next += give - stream.avail_in;
    left -= give - stream.avail_in;
    const size_t got = chunk.size() - stream.avail_out;
    if (got > static_cast<size_t>(size_max.count()) - text.size()) {
      return absl::ResourceExhaustedError(absl::StrCat(path, ": unpacks to more than ",
                                                       ToString(size_max),
                                                       ", the most that is read of such a file"));
    }
    text.append(chunk.data(), got);
    if (result == Z_STREAM_END) {
      bool another = absl::StartsWith(absl::string_view(next, left), kGzipMagic);
      if (!another) return text;  // padding after the last member is allowed
      inflateReset(&stream);
    } else if (result == Z_BUF_ERROR || (result == Z_OK && left == 0 && stream.avail_out > 0)) {
      return absl::DataLossError(absl::StrCat(path, " is a truncated gzip file: it ends after ",
                                              text.size(), " bytes of text"));
    } else if (result != Z_OK) {
      return absl::DataLossError(absl::StrCat(
          path, ", byte ", packed.size() - left,
          ": damaged gzip file: ", stream.msg != nullptr ? stream.msg : zError(result)));
    }
  }
}

// Length of the well-formed sequence at `at`, or 0 with `bad` = length of the ill-formed part.
size_t WellFormed(const std::string& text, size_t at, size_t& bad) {
  auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  unsigned lead = byte(0);
  bad = 1;
  if (lead == 0) return 0;
  if (lead < 0x80) return 1;
  size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                  : lead >= 0xE0 && lead <= 0xEF ? 3
                  : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                 : 0;
  if (length == 0) return 0;
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // else overlong
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // else surrogate, or too large
  if (byte(1) < low || byte(1) > high) return 0;
  for (bad = 2; bad < length; ++bad) {
    if (byte(bad) < 0x80 || byte(bad) > 0xBF) return 0;
  }
  return length;
}

absl::string_view StripLineBreaks(absl::string_view text) {
  while (!text.empty() && (text.front() == '\n' || text.front() == '\r')) text.remove_prefix(1);
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, Bytes size_max) {
  absl::StatusOr<std::string> content = ReadFile(path, size_max);
  if (content.ok() && absl::StartsWith(*content, kGzipMagic)) {
    return Gunzip(path, *content, size_max);
  }
  return content;
}

int64_t ReplaceInvalidUtf8(std::string& text) {
  size_t bad = 0;
  size_t good_until = 0;
  while (good_until < text.size()) {
    size_t length = WellFormed(text, good_until, bad);
    if (length == 0) break;
    good_until += length;
  }
  if (good_until == text.size()) return 0;  // the usual case copies nothing
  std::string fixed = text.substr(0, good_until);
  int64_t replaced = 0;
  for (size_t at = good_until; at < text.size();) {
    size_t length = WellFormed(text, at, bad);
    if (length > 0) {
      fixed.append(text, at, length);
      at += length;
    } else {
      fixed += kReplacement;
      ++replaced;
      at += bad;
    }
  }
  text = std::move(fixed);
  return replaced;
}

absl::StatusOr<DocumentSplit> ParseDocumentSplit(absl::string_view name) {
  if (name == "blank-lines") return DocumentSplit::kBlankLines;
  if (name == "lines") return DocumentSplit::kLines;
  if (name == "file") return DocumentSplit::kFile;
  return absl::InvalidArgumentError(
      absl::StrCat("split '", name, "' is none; right are blank-lines, lines, file"));
}

std::vector<absl::string_view> SplitDocuments(absl::string_view text, DocumentSplit split) {
  std::vector<absl::string_view> documents;
  auto add = [&](size_t begin, size_t end) {
    absl::string_view document = StripLineBreaks(text.substr(begin, end - begin));
    if (!document.empty()) documents.push_back(document);
  };
  if (split == DocumentSplit::kFile) {
    add(0, text.size());
    return documents;
  }
  size_t begin = 0;
  for (size_t line = 0; line < text.size();) {
    size_t end = std::min(text.find('\n', line), text.size());
    bool blank = absl::StripAsciiWhitespace(text.substr(line, end - line)).empty();
    if (split == DocumentSplit::kLines || blank) {
      add(begin, split == DocumentSplit::kLines ? end : line);
      begin = end + 1;
    }
    line = end + 1;
  }
  if (begin < text.size()) add(begin, text.size());
  return documents;
}

}  // namespace weft::train
