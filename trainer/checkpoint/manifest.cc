#include "trainer/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/status.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kStepPrefix = "step-";
constexpr char kChecksumKey[] = "crc32c";

std::string Hex(uint32_t value) { return absl::StrFormat("%08x", value); }

// The checksum of a manifest is that of its compact form without the checksum.
std::string ChecksumOf(const Json& body) { return Hex(Crc32c(JsonText(body))); }

// Typed access to members; the first failure is kept and named with its place.
class Fields {
 public:
  Fields(const Json& object, std::string place, absl::Status& status)
      : object_(object), place_(std::move(place)), status_(status) {
    if (!object.is_object()) Fail("it", "an object");
  }
  template <typename T>
  T Count(const char* key) {
    const Json* member = Find(key);
    if (member == nullptr || !member->is_number_unsigned()) return Fail(key, "a number"), T{};
    uint64_t value = member->get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<T>::max())) Fail(key, "smaller");
    return static_cast<T>(value);
  }
  std::string Text(const char* key) {
    const Json* member = Find(key);
    if (member == nullptr || !member->is_string()) return Fail(key, "a text"), "";
    return member->get<std::string>();
  }
  const Json& List(const char* key) {
    static const Json empty = Json::array();
    const Json* member = Find(key);
    if (member == nullptr || !member->is_array()) return Fail(key, "a list"), empty;
    return *member;
  }
  uint32_t Checksum(const char* key) {
    std::string text = Text(key);
    uint32_t value = 0;
    if (text.size() != 8 || !absl::SimpleHexAtoi(text, &value)) Fail(key, "8 hexadecimal digits");
    return value;
  }
  void Fail(absl::string_view key, absl::string_view right) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(place_, ": '", key, "' should be ", right));
    }
  }

 private:
  const Json* Find(const char* key) const {
    auto member = object_.find(key);
    return object_.is_object() && member != object_.end() ? &*member : nullptr;
  }
  const Json& object_;
  std::string place_;
  absl::Status& status_;
};

BufferSlice ParseSlice(Fields& fields, int version) {
  const int shard = fields.Count<int>("shard");
  const int64_t begin = fields.Count<int64_t>("begin");
  if (version == 1) return {shard, 0, ElementRange::Run(begin, fields.Count<int64_t>("end"))};
  return {shard,
          fields.Count<int64_t>("at"),
          {begin, fields.Count<int64_t>("length"), fields.Count<int64_t>("stride"),
           fields.Count<int64_t>("count")}};
}

BufferLayout ParseBuffer(const Json& entry, const std::string& path, int version,
                         absl::Status& status) {
  Fields fields(entry, absl::StrCat(path, ", buffers"), status);
  BufferLayout buffer;
  buffer.name = fields.Text("name");
  buffer.elements = fields.Count<int64_t>("elements");
  auto dtype = ParseDType(fields.Text("dtype"));
  if (dtype.ok()) {
    buffer.dtype = *dtype;
  } else {
    fields.Fail("dtype", "a number type of safetensors");
  }
  for (const Json& slice : fields.List("slices")) {
    Fields part(slice, absl::StrCat(path, ", slices of ", buffer.name), status);
    buffer.slices.push_back(ParseSlice(part, version));
  }
  if (version < 3) {
    buffer.shape = {buffer.elements};
    return buffer;
  }
  for (const Json& extent : fields.List("shape")) {
    if (!extent.is_number_unsigned()) fields.Fail("shape", "a list of numbers");
    // Too large to fit becomes negative, which CheckManifestLayout refuses.
    buffer.shape.push_back(extent.is_number_unsigned() ? extent.get<int64_t>() : -1);
  }
  for (const Json& entry : fields.List("checksums")) {
    Fields part(entry, absl::StrCat(path, ", checksums of ", buffer.name), status);
    buffer.checksums[part.Count<int>("shard")] = part.Checksum(kChecksumKey);
  }
  return buffer;
}

absl::StatusOr<Manifest> ParseBody(const Json& body, const std::string& path, int version) {
  absl::Status status;
  Fields fields(body, path, status);
  Manifest manifest;
  manifest.version = version;
  manifest.step = fields.Count<int64_t>("step");
  manifest.samples_consumed = fields.Count<int64_t>("samples_consumed");
  manifest.seed = fields.Count<uint64_t>("seed");
  manifest.world_size = fields.Count<int>("world_size");
  manifest.config_hash = fields.Text("config_hash");
  for (const Json& state : fields.List("states")) {
    Fields part(state, absl::StrCat(path, ", states"), status);
    std::string name = part.Text("name");
    std::string hex = part.Text("hex");
    if (hex.size() % 2 != 0 || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
      part.Fail("hex", "hexadecimal digits, two a byte");
    } else {
      manifest.states[name] = absl::HexStringToBytes(hex);
    }
  }
  for (const Json& shard : fields.List("shards")) {
    Fields part(shard, absl::StrCat(path, ", shards"), status);
    manifest.shards.push_back(
        {part.Text("file"), part.Count<int64_t>("bytes"), part.Checksum(kChecksumKey)});
  }
  for (const Json& buffer : fields.List("buffers")) {
    manifest.buffers.push_back(ParseBuffer(buffer, path, version, status));
  }
  WEFT_RETURN_IF_ERROR(status);
  return manifest;
}

}  // namespace

const BufferLayout* Manifest::Find(absl::string_view buffer) const {
  auto found = std::find_if(buffers.begin(), buffers.end(),
                            [buffer](const BufferLayout& layout) { return layout.name == buffer; });
  return found == buffers.end() ? nullptr : &*found;
}

std::vector<BufferRun> BufferLayout::Runs() const {
  std::vector<BufferRun> runs;
  for (const BufferSlice& slice : slices) {
    const ElementRange& range = slice.range;
    for (int64_t run = 0; run < range.count; ++run) {
      const int64_t begin = range.begin + run * range.stride;
      runs.push_back({begin, begin + range.length, slice.shard, slice.at + run * range.length});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const BufferRun& a, const BufferRun& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  return runs;
}

namespace {

// Every number of the slices in bounds, so that Runs() is no larger than the buffer.
absl::Status CheckSlices(const BufferLayout& buffer, int world_size) {
  int64_t runs = 0;
  for (const BufferSlice& slice : buffer.slices) {
    const ElementRange& range = slice.range;
    const bool in_bounds =
        slice.shard >= 0 && slice.shard < world_size && slice.at >= 0 && range.begin >= 0 &&
        range.length >= 1 && range.count >= 1 && range.count <= buffer.elements - runs &&
        range.begin <= buffer.elements && range.length <= buffer.elements - range.begin &&
        (range.count == 1 ||
         (range.stride >= range.length &&
          range.stride <= (buffer.elements - range.begin - range.length) / (range.count - 1)));
    if (!in_bounds) {
      return absl::DataLossError(
          absl::StrCat("buffer '", buffer.name, "' of ", buffer.elements, " elements: shard ",
                       slice.shard, " holds ", range.count, " runs of ", range.length,
                       " elements at ", range.begin, " + k x ", range.stride));
    }
    runs += range.count;
  }
  return absl::OkStatus();
}

absl::Status CheckCover(const BufferLayout& buffer) {
  int64_t covered = 0;
  for (const BufferRun& run : buffer.Runs()) {
    if (run.begin != covered) {
      return absl::DataLossError(absl::StrCat(
          "buffer '", buffer.name, "': shard ", run.shard, " holds elements [", run.begin, ", ",
          run.end, "), but those up to ", covered, " are held by the ones before it"));
    }
    covered = run.end;
  }
  if (covered != buffer.elements) {
    return absl::DataLossError(absl::StrCat("buffer '", buffer.name, "': the shards hold ", covered,
                                            " of its ", buffer.elements, " elements"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ElementsOf(absl::Span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) return -1;
  }
  return elements;
}

absl::Status CheckManifestLayout(const Manifest& manifest) {
  if (manifest.world_size < 1 ||
      manifest.shards.size() != static_cast<size_t>(manifest.world_size)) {
    return absl::DataLossError(absl::StrCat(manifest.shards.size(), " shards of ",
                                            manifest.world_size, " ranks; one a rank is right"));
  }
  std::set<std::string> names;
  for (const ShardInfo& shard : manifest.shards) {
    bool plain = !shard.file.empty() && shard.file.find('/') == std::string::npos;
    if (!plain || !names.insert(shard.file).second) {
      return absl::DataLossError(
          absl::StrCat("shard '", shard.file, "' is not a plain file name, or is there twice"));
    }
  }
  names.clear();
  for (const BufferLayout& buffer : manifest.buffers) {
    if (!names.insert(buffer.name).second) {
      return absl::DataLossError(absl::StrCat("buffer '", buffer.name, "' is there twice"));
    }
    WEFT_RETURN_IF_ERROR(CheckSlices(buffer, manifest.world_size));
    WEFT_RETURN_IF_ERROR(CheckCover(buffer));
    if (ElementsOf(buffer.shape) != buffer.elements) {
      return absl::DataLossError(absl::StrCat("buffer '", buffer.name, "' of ", buffer.elements,
                                              " elements: its shape is [",
                                              absl::StrJoin(buffer.shape, ", "), "]"));
    }
  }
  return absl::OkStatus();
}

std::string ToJson(const Manifest& manifest) {
  Json states = Json::array();
  for (const auto& [name, bytes] : manifest.states) {
    states.push_back({{"name", name}, {"hex", absl::BytesToHexString(bytes)}});
  }
  Json shards = Json::array();
  for (const ShardInfo& shard : manifest.shards) {
    shards.push_back(
        {{"file", shard.file}, {"bytes", shard.bytes}, {kChecksumKey, Hex(shard.crc32c)}});
  }
  Json buffers = Json::array();
  for (const BufferLayout& buffer : manifest.buffers) {
    Json slices = Json::array();
    for (const BufferSlice& slice : buffer.slices) {
      slices.push_back({{"shard", slice.shard},
                        {"at", slice.at},
                        {"begin", slice.range.begin},
                        {"length", slice.range.length},
                        {"stride", slice.range.stride},
                        {"count", slice.range.count}});
    }
    Json checksums = Json::array();
    for (const auto& [shard, checksum] : buffer.checksums) {
      checksums.push_back({{"shard", shard}, {kChecksumKey, Hex(checksum)}});
    }
    buffers.push_back({{"name", buffer.name},
                       {"dtype", std::string(NameOf(buffer.dtype))},
                       {"elements", buffer.elements},
                       {"shape", buffer.shape},
                       {"slices", std::move(slices)},
                       {"checksums", std::move(checksums)}});
  }
  Json body = {{"format", "weft-checkpoint"},
               {"version", kCheckpointVersion},
               {"step", manifest.step},
               {"samples_consumed", manifest.samples_consumed},
               {"seed", manifest.seed},
               {"world_size", manifest.world_size},
               {"config_hash", manifest.config_hash},
               {"states", std::move(states)},
               {"shards", std::move(shards)},
               {"buffers", std::move(buffers)}};
  body[kChecksumKey] = ChecksumOf(body);
  return JsonText(body, 1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text, const std::string& path) {
  Json body = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("format") || body["format"] != "weft-checkpoint") {
    return absl::DataLossError(absl::StrCat(path, " is not a checkpoint's manifest, or damaged"));
  }
  absl::Status status;
  Fields fields(body, path, status);
  int version = fields.Count<int>("version");
  std::string checksum = fields.Text(kChecksumKey);
  WEFT_RETURN_IF_ERROR(status);
  if (version < 1 || version > kCheckpointVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has version ", version, "; this program reads versions 1 to ", kCheckpointVersion));
  }
  body.erase(kChecksumKey);
  if (std::string actual = ChecksumOf(body); actual != checksum) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: its checksum is ", actual, " instead of ", checksum));
  }
  WEFT_ASSIGN_OR_RETURN(Manifest manifest, ParseBody(body, path, version));
  if (absl::Status layout = CheckManifestLayout(manifest); !layout.ok())
    return Annotate(layout, path);
  return manifest;
}

std::string HashConfig(absl::string_view config_text) {
  // Fowler, Noll, Vo: offset basis and prime of the 64-bit FNV-1a.
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : config_text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return absl::StrFormat("%016x", hash);
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::string TemporaryCheckpointName(int64_t step) {
  return absl::StrCat(".tmp-", CheckpointName(step));
}

std::string ReplacedCheckpointName(int64_t step) {
  return absl::StrCat(".replaced-", CheckpointName(step));
}

std::string ShardName(int rank, int world_size) {
  return absl::StrFormat("rank-%05d-of-%05d.safetensors", rank, world_size);
}

bool ParseCheckpointName(absl::string_view name, int64_t& step) {
  return absl::ConsumePrefix(&name, kStepPrefix) && name.size() >= 8 &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(name, &step);
}

absl::StatusOr<Manifest> ReadManifest(const std::string& checkpoint, std::string* bytes) {
  const std::string path = absl::StrCat(checkpoint, "/", kManifestName);
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat(checkpoint, " is not a checkpoint"));
  absl::StatusOr<Manifest> manifest = ParseManifest(*text, path);
  if (bytes != nullptr) *bytes = *std::move(text);
  return manifest;
}

}  // namespace weft::train
