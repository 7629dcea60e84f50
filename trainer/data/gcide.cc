#include "trainer/data/gcide.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::train {
namespace {

constexpr size_t kLongestCode = 6;     // "thorn"
constexpr size_t kLongestEcho = 40;    // of the next head word, behind a source
constexpr size_t kShortestEntry = 20;  // less says nothing

using Code = std::pair<absl::string_view, absl::string_view>;
constexpr std::array kCodes = {
    Code{"ae", "æ"},  Code{"oe", "œ"},    Code{"AE", "Æ"},   Code{"OE", "Œ"},   Code{"deg", "°"},
    Code{"eth", "ð"}, Code{"thorn", "þ"}, Code{"root", "√"}, Code{"aum", "a"},  Code{"imac", "i"},
    Code{"add", "a"}, Code{"asl", "a"},   Code{"ng", "ng"},  Code{"=oo", "oo"}, Code{"'e", "é"},
    Code{"'a", "á"},  Code{"'i", "í"},    Code{"'o", "ó"},   Code{"'u", "ú"},   Code{"'E", "É"},
    Code{"`e", "è"},  Code{"`a", "à"},    Code{"`o", "ò"},   Code{"\"o", "ö"},  Code{"\"u", "ü"},
    Code{"\"a", "ä"}, Code{"\"e", "ë"},   Code{"\"i", "ï"},  Code{"^e", "ê"},   Code{"^a", "â"},
    Code{"^o", "ô"},  Code{"^i", "î"},    Code{"^u", "û"},   Code{",c", "ç"},   Code{"~n", "ñ"},
};

// How an etymology begins; a usage label ("Obs.", "Prov. Eng.") or an inflection does not.
constexpr std::array<absl::string_view, 56> kEtymologies = {
    "L.",     "F.",     "Gr.",    "AS.",       "OE.",    "OF.",     "NL.",     "LL.",
    "G.",     "D.",     "It.",    "Sp.",       "Pg.",    "Cf.",     "See",     "From",
    "Fr.",    "Icel.",  "OHG.",   "MHG.",      "Skr.",   "Heb.",    "Ar.",     "Per.",
    "Perh.",  "Prob",   "Pref.",  "pref",      "Formed", "Akin",    "a Latin", "W.",
    "Gael.",  "Ir.",    "Dan.",   "Sw.",       "Russ.",  "Turk.",   "Hind.",   "Malay",
    "Chin",   "Jap",    "Named",  "So called", "Contr",  "Corrupt", "Abbrev",  "Imitative",
    "Onomat", "Origin", "Etymol", "Of ",       "cf.",    "fr.",     "Late L",  "Latin"};

constexpr std::array<absl::string_view, 8> kSources = {
    "1913 Webster", "WordNet", "Webster 1913", "PJC", "Century", "RH", "MW10", "AS"};

bool IsSource(absl::string_view inside) {
  return std::any_of(kSources.begin(), kSources.end(), [&](absl::string_view source) {
    return source.size() > 2 ? absl::StrContains(inside, source) : inside == source;
  });
}

bool IsEtymology(absl::string_view inside) {
  return absl::StrContains(inside, "?") || absl::StrContains(inside, " + ") ||
         std::any_of(kEtymologies.begin(), kEtymologies.end(),
                     [&](absl::string_view start) { return absl::StartsWith(inside, start); });
}

// The letter behind the inside of a code's brackets, or "" when it is no code.
absl::string_view Letter(absl::string_view inside) {
  for (const auto& [code, letter] : kCodes) {
    if (inside == code) return letter;
  }
  if (inside.size() != 2) return "";
  if (absl::ascii_isalpha(static_cast<unsigned char>(inside[0])) && inside[1] == '^') {
    return inside.substr(0, 1);
  }
  bool marked = absl::StrContains("'`\"^=.~,-_*", inside.substr(0, 1));
  bool letter = absl::ascii_isalpha(static_cast<unsigned char>(inside[1]));
  return marked && letter ? inside.substr(1) : "";
}

std::string ReplaceCodes(absl::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = text[at] == '[' ? text.substr(at, kLongestCode + 2).find(']') : std::string::npos;
    absl::string_view letter =
        end == absl::string_view::npos ? "" : Letter(text.substr(at + 1, end - 1));
    if (letter.empty()) {
      out += text[at++];
    } else {
      absl::StrAppend(&out, letter);
      at += end + 1;
    }
  }
  return out;
}

// `\pronunciation\` and a pronunciation in parentheses right behind it. Before ReplaceCodes.
std::string DropPronunciations(absl::string_view text) {
  std::string out;
  while (true) {
    size_t open = text.find('\\');
    size_t close = open == absl::string_view::npos ? open : text.find('\\', open + 1);
    if (close == absl::string_view::npos) break;
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(text.substr(0, open)));
    text.remove_prefix(close + 1);
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(text);
    size_t end = absl::StartsWith(rest, "(") ? rest.find(')') : absl::string_view::npos;
    if (end != absl::string_view::npos &&
        rest.substr(0, end).find_first_of("[?\"*") != absl::string_view::npos) {
      text = rest.substr(end + 1);
    }
    if (!text.empty() && absl::ascii_isalnum(static_cast<unsigned char>(text[0]))) out += ", ";
  }
  absl::StrAppend(&out, text);
  return out;
}

// The position behind the bracket that closes the one at `open`, or npos.
size_t Matching(absl::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && --depth == 0) return i + 1;
  }
  return absl::string_view::npos;
}

// Sources anywhere, etymologies in the head only.
std::string DropBrackets(absl::string_view text, bool head) {
  std::string out;
  while (true) {
    size_t open = text.find('[');
    size_t close = open == absl::string_view::npos ? open : Matching(text, open);
    if (close == absl::string_view::npos) break;
    absl::string_view inside = text.substr(open + 1, close - open - 2);
    bool source = IsSource(inside);
    bool drop = source || (head && IsEtymology(inside));
    absl::StrAppend(&out, text.substr(0, drop ? open : close));
    text.remove_prefix(close);
    // What stands between a source and the end of an entry is often the next entry's head word.
    if (source && text.size() <= kLongestEcho && !absl::StrContains(text, ".")) return out;
  }
  absl::StrAppend(&out, text);
  return out;
}

// Single spaces, none before punctuation, no braces.
std::string Tidy(absl::string_view text) {
  std::string out;
  bool space = false;
  for (char c : text) {
    if (c == '{' || c == '}') continue;
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) {
      space = true;
      continue;
    }
    bool attached = c == ',' || c == '.' || c == ';' || c == ':';
    if (space && !out.empty() && !attached) out += ' ';
    space = false;
    out += c;
  }
  return out;
}

std::string CleanParagraph(absl::string_view paragraph, bool head) {
  std::string text = head ? DropPronunciations(paragraph) : std::string(paragraph);
  text = Tidy(DropBrackets(ReplaceCodes(text), head));
  if (!head) return text;
  size_t first_sense = text.find(" 1. ");
  if (first_sense != std::string::npos) text[first_sense] = '\n';
  return text;
}

bool IsBlank(absl::string_view line) { return absl::StripAsciiWhitespace(line).empty(); }

}  // namespace

std::string CleanGcideEntry(absl::string_view entry) {
  std::vector<std::string> cleaned;
  std::string paragraph;
  auto finish = [&] {
    if (paragraph.empty()) return;
    std::string text = CleanParagraph(paragraph, cleaned.empty());
    if (text.find_first_not_of(" .,;:") != std::string::npos) cleaned.push_back(std::move(text));
    paragraph.clear();
  };
  for (absl::string_view line : absl::StrSplit(entry, '\n')) {
    if (IsBlank(line)) {
      finish();
    } else {
      absl::StrAppend(&paragraph, paragraph.empty() ? "" : " ", absl::StripAsciiWhitespace(line));
    }
  }
  finish();
  return absl::StrJoin(cleaned, "\n");
}

std::vector<std::string> CleanGcide(absl::string_view text) {
  std::vector<std::string> documents;
  size_t begin = absl::string_view::npos;  // of the entry being read; npos: none
  auto finish = [&](size_t end) {
    if (begin == absl::string_view::npos) return;
    std::string document = CleanGcideEntry(text.substr(begin, end - begin));
    if (document.size() >= kShortestEntry) documents.push_back(std::move(document));
    begin = absl::string_view::npos;
  };
  bool after_blank = true;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    absl::string_view line = text.substr(at, end - at);
    bool flush_left = !line.empty() && !absl::ascii_isspace(static_cast<unsigned char>(line[0]));
    if (after_blank && flush_left) {
      finish(at);
      // Notices and bare word lists have no pronunciation.
      if (absl::StrContains(line, "\\")) begin = at;
    }
    after_blank = IsBlank(line);
    at = end + 1;
  }
  finish(text.size());
  return documents;
}

}  // namespace weft::train
