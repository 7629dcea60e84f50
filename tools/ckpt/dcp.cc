#include "tools/ckpt/dcp.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/command.h"
#include "base/status.h"
#include "tools/ckpt/dcp_program.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/files/file.h"

namespace weft::ckpt {
namespace {

using train::BufferLayout;
using train::CheckpointReader;
using train::DType;
using train::Manifest;
using train::SafetensorsFile;
using train::TensorInfo;
using Json = nlohmann::ordered_json;

// Importing PyTorch takes seconds; writing goes at the disk's pace.
constexpr absl::Duration kPythonMost = absl::Hours(6);
// Elements that are copied at a time.
constexpr int64_t kChunk = 1 << 20;

std::string Describe(const Manifest& manifest) {
  Json states = Json::object();
  for (const auto& [name, bytes] : manifest.states) states[name] = absl::BytesToHexString(bytes);
  const Json json = {{"step", manifest.step},
                     {"samples_consumed", manifest.samples_consumed},
                     {"seed", manifest.seed},
                     {"states", std::move(states)}};
  return json.dump();
}

// By falling width, so that each tensor begins at a multiple of its element's size.
std::vector<const BufferLayout*> ByWidth(const Manifest& manifest) {
  std::vector<const BufferLayout*> order;
  for (const BufferLayout& buffer : manifest.buffers) order.push_back(&buffer);
  std::stable_sort(order.begin(), order.end(), [](const BufferLayout* a, const BufferLayout* b) {
    return train::SizeOf(a->dtype) > train::SizeOf(b->dtype);
  });
  return order;
}

absl::Status WriteExchange(const CheckpointReader& reader, const std::string& path) {
  const std::vector<const BufferLayout*> buffers = ByWidth(reader.manifest());
  const std::string description = Describe(reader.manifest());
  std::vector<train::TensorSpec> specs;
  for (const BufferLayout* buffer : buffers) {
    specs.push_back({buffer->name, buffer->dtype, buffer->shape});
  }
  specs.push_back({kManifestEntry, DType::kU8, {static_cast<int64_t>(description.size())}});
  WEFT_ASSIGN_OR_RETURN(train::SafetensorsWriter writer,
                        train::SafetensorsWriter::Create(path, specs));
  std::vector<std::byte> bytes;
  for (const BufferLayout* buffer : buffers) {
    for (int64_t begin = 0; begin < buffer->elements; begin += kChunk) {
      const int64_t end = std::min(buffer->elements, begin + kChunk);
      bytes.resize(static_cast<size_t>((end - begin) * train::SizeOf(buffer->dtype)));
      WEFT_RETURN_IF_ERROR(reader.Read(buffer->name, begin, end, absl::MakeSpan(bytes)));
      WEFT_RETURN_IF_ERROR(writer.Append(bytes));
    }
  }
  WEFT_RETURN_IF_ERROR(writer.Append(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(description.data()), description.size())));
  return writer.Commit();
}

struct Description {
  int64_t step = 0;
  train::CheckpointState state;
};

absl::StatusOr<Description> ReadDescription(const SafetensorsFile& file,
                                            const std::string& source) {
  const TensorInfo* entry = file.Find(kManifestEntry);
  if (entry == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " has no entry '", kManifestEntry,
        "', which says what run it is of; convert --to dcp writes it. Where its tensors "
        "have the names of a Hugging Face model, --config says what run it is to be"));
  }
  const absl::Span<const std::byte> bytes = file.Data(*entry);
  const char* text = reinterpret_cast<const char*>(bytes.data());
  const Json json = Json::parse(text, text + bytes.size(), nullptr, /*allow_exceptions=*/false);
  const auto is_count = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned();
  };
  if (!json.is_object() || !is_count("step") || !is_count("samples_consumed") ||
      !is_count("seed") || !json.contains("states") || !json["states"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": its entry '", kManifestEntry,
        "' is not what convert --to dcp writes: step, samples_consumed, seed, states"));
  }
  Description description;
  description.step = json["step"].get<int64_t>();
  description.state.samples_consumed = json["samples_consumed"].get<int64_t>();
  if (description.step < 0 || description.state.samples_consumed < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": '", kManifestEntry, "' has a step or samples beyond 2^63"));
  }
  description.state.seed = json["seed"].get<uint64_t>();
  for (const auto& [name, hex] : json["states"].items()) {
    if (!hex.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": state '", name, "' of '", kManifestEntry, "' is no text"));
    }
    description.state.states[name] = absl::HexStringToBytes(hex.get<std::string>());
  }
  return description;
}

}  // namespace

absl::Status RunDcpProgram(NewFolder& folder, const std::string& python,
                           const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {python, "-W", "ignore", "-c", kDcpProgram};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<CommandOutput> output = folder.Run(command, kPythonMost);
  if (absl::IsNotFound(output.status())) {
    return absl::NotFoundError(absl::StrCat("there is no ", python, "; --python names another"));
  }
  if (!output.ok()) return Annotate(output.status(), python);
  if (output->status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(python, ": ", absl::StripAsciiWhitespace(output->text)));
}

absl::Status CheckDcpPython(NewFolder& folder, const std::string& python) {
  return RunDcpProgram(folder, python, {"check"});
}

absl::StatusOr<Converted> Convert(const ToDcp& options) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                        OpenWithShapes(options.checkpoint));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  const std::string exchange = folder->path() + "/exchange.safetensors";
  WEFT_RETURN_IF_ERROR(CheckDcpPython(*folder, options.python));
  WEFT_RETURN_IF_ERROR(WriteExchange(*reader, exchange));
  WEFT_RETURN_IF_ERROR(RunDcpProgram(*folder, options.python, {"to", exchange, folder->path()}));
  WEFT_RETURN_IF_ERROR(train::RemoveTree(exchange));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  Converted converted;
  for (const BufferLayout& buffer : reader->manifest().buffers) {
    ++converted.tensors;
    converted.elements += buffer.elements;
  }
  return converted;
}

absl::StatusOr<Converted> Convert(const FromDcp& options) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  const std::string exchange = folder->path() + "/exchange.safetensors";
  WEFT_RETURN_IF_ERROR(RunDcpProgram(*folder, options.python, {"from", options.source, exchange}));
  Converted converted;
  {
    WEFT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(exchange));
    WEFT_ASSIGN_OR_RETURN(const Description description, ReadDescription(file, options.source));
    std::vector<train::BufferPart> parts;
    for (const TensorInfo& tensor : file.tensors()) {
      if (tensor.name == kManifestEntry) continue;
      train::BufferPart& part = parts.emplace_back();
      part.name = tensor.name;
      part.dtype = tensor.dtype;
      part.bytes = file.Data(tensor);
      part.elements = train::ElementsOf(tensor.shape);
      part.shape = tensor.shape;
      ++converted.tensors;
      converted.elements += part.elements;
    }
    train::CheckpointWriter writer(folder->path() + "/checkpoints", description.step, 1);
    WEFT_RETURN_IF_ERROR(writer.WriteShard(0, parts));
    WEFT_RETURN_IF_ERROR(writer.Commit(description.state).status());
  }
  WEFT_RETURN_IF_ERROR(train::RemoveTree(exchange));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  return converted;
}

}  // namespace weft::ckpt
