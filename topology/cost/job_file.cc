#include "topology/cost/job_file.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/toml.h"
#include "topology/cost/model_traffic.h"
#include "topology/job/key_reader.h"
#include "topology/job/mesh_text.h"

namespace weft::topology {
namespace {

// A description as text by section, whatever it was read from.
struct Sections {
  std::string name;
  Section layout{"layout", "", {}}, node{"node", "", {}};
  std::optional<Section> model;
  std::vector<Section> traffic;
};

std::string Origin(const std::string& file, const toml::value& value) {
  return absl::StrCat(file, ":", value.location().line());
}

absl::StatusOr<std::string> ValueText(const toml::value& value) {
  if (value.is_boolean()) return std::string(value.as_boolean() ? "true" : "false");
  if (value.is_integer()) return absl::StrCat(value.as_integer());
  if (value.is_floating()) return absl::StrFormat("%.17g", value.as_floating());
  if (value.is_string()) return std::string(value.as_string().str);
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const toml::value& part : value.as_array()) {
      if (!part.is_string()) return absl::InvalidArgumentError("must be a list of texts");
      parts.push_back(part.as_string().str);
    }
    return absl::StrJoin(parts, "-");
  }
  return absl::InvalidArgumentError("must be a number, a text, a list of texts, true or false");
}

absl::StatusOr<Section> SectionFromToml(const std::string& file, const std::string& name,
                                        const toml::value& table) {
  if (!table.is_table()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Origin(file, table), ": ", name, " must be a section, [", name, "]"));
  }
  Section section{name, Origin(file, table), {}};
  for (const auto& [key, value] : table.as_table()) {
    absl::StatusOr<std::string> text = ValueText(value);
    if (!text.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Origin(file, value), ": ", name, ".", key, " ", text.status().message()));
    }
    section.entries.push_back({key, *text, Origin(file, value)});
  }
  // toml11 keeps no order: errors must not depend on a hash.
  std::sort(section.entries.begin(), section.entries.end(),
            [](const KeyValue& a, const KeyValue& b) { return a.key < b.key; });
  return section;
}

absl::Status ReadRoot(const std::string& file, const toml::value& root, Sections& sections) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : root.as_table()) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    const toml::value& value = root.as_table().at(key);
    if (key == "name") {
      WEFT_ASSIGN_OR_RETURN(sections.name, ValueText(value));
    } else if (key == "layout") {
      WEFT_ASSIGN_OR_RETURN(sections.layout, SectionFromToml(file, key, value));
    } else if (key == "node") {
      WEFT_ASSIGN_OR_RETURN(sections.node, SectionFromToml(file, key, value));
    } else if (key == "model") {
      WEFT_ASSIGN_OR_RETURN(sections.model, SectionFromToml(file, key, value));
    } else if (key == "traffic") {
      if (!value.is_array()) {
        return absl::InvalidArgumentError(
            absl::StrCat(Origin(file, value), ": traffic must be a list, [[traffic]]"));
      }
      for (const toml::value& one : value.as_array()) {
        WEFT_ASSIGN_OR_RETURN(Section section, SectionFromToml(file, key, one));
        sections.traffic.push_back(std::move(section));
      }
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(Origin(file, value), ": there is no section '", key,
                       "'; there are name, [layout], [node], [model] and [[traffic]]"));
    }
  }
  return absl::OkStatus();
}

absl::Status AddWords(const JobWords& words, Sections& sections) {
  auto append = [](const Section& more, Section& section) {
    section.entries.insert(section.entries.end(), more.entries.begin(), more.entries.end());
  };
  if (!words.layout.empty()) {
    WEFT_ASSIGN_OR_RETURN(Section layout, MeshSection(words.layout, "--layout"));
    append(layout, sections.layout);
  }
  WEFT_ASSIGN_OR_RETURN(Section node, SectionFromWords("node", words.node, "--node"));
  append(node, sections.node);
  if (!words.model.empty()) {
    // "gpt-175b,zero=1": a preset may stand first, by its name alone.
    std::string text = words.model;
    if (text.substr(0, text.find(',')).find('=') == std::string::npos) text = "preset=" + text;
    WEFT_ASSIGN_OR_RETURN(Section model, SectionFromWords("model", text, "--model"));
    if (!sections.model.has_value()) sections.model = Section{"model", "--model", {}};
    append(model, *sections.model);
  }
  for (const std::string& text : words.traffic) {
    WEFT_ASSIGN_OR_RETURN(Section traffic, SectionFromWords("traffic", text, "--traffic"));
    sections.traffic.push_back(std::move(traffic));
  }
  return absl::OkStatus();
}

absl::Status ReadNode(const Section& section, NodeShape& node) {
  KeyReader reader(section);
  reader.Read("gpus", node.gpus, 1, 1024);
  reader.Read("nvlink", node.nvlink);
  reader.Read("nvlink_latency", node.nvlink_latency);
  reader.Read("network_latency", node.network_latency);
  reader.Read("queue_pairs", node.queue_pairs, 1, 1024);
  reader.Read("efficiency", node.efficiency, 0.01, 1);
  return reader.Done();
}

absl::Status ReadModel(const Section& section, TrainingSetup& setup) {
  KeyReader reader(section);
  constexpr int64_t kMost = int64_t{1} << 40;
  reader.ReadWith("preset", setup, NamedSetup);
  ModelShape& model = setup.model;
  reader.Read("layers", model.layers, 1, kMost);
  reader.Read("hidden", model.hidden, 1, kMost);
  reader.Read("ffn", model.ffn, 0, 1 << 24);
  reader.Read("kv_hidden", model.kv_hidden, 0, 1 << 24);
  reader.Read("vocabulary", model.vocabulary, 1, kMost);
  reader.Read("sequence", model.sequence, 1, kMost);
  reader.Read("micro_batch", setup.micro_batch, 1, kMost);
  reader.Read("global_batch", setup.global_batch, 1, kMost);
  reader.Read("element_bytes", setup.element_bytes, 1, 8);
  reader.Read("gradient_bytes", setup.gradient_bytes, 1, 8);
  reader.Read("zero", setup.zero, 0, 3);
  reader.Read("interleave", setup.interleave, 1, 1024);
  reader.Read("sequence_parallel", setup.sequence_parallel);
  bool is_parallel = model.block == BlockKind::kParallel, is_gated = model.IsGated();
  reader.Read("parallel_block", is_parallel);
  reader.Read("gated", is_gated);
  model.block = is_parallel ? BlockKind::kParallel : BlockKind::kSerial;
  model.activation = is_gated ? ActivationKind::kSwiglu : ActivationKind::kGelu;
  reader.Read("experts", model.experts, 0, 1 << 16);
  reader.Read("top_k", model.top_k, 1, 1 << 10);
  reader.Read("moe_every", model.moe_every, 1, 1 << 16);
  reader.Read("overlap_data", setup.overlap_data);
  reader.Read("overlap_pipeline", setup.overlap_pipeline);
  reader.Read("overlap_tensor", setup.overlap_tensor);
  reader.Read("overlap_context", setup.overlap_context);
  return reader.Done();
}

absl::StatusOr<Traffic> ReadTraffic(const Section& section) {
  Traffic traffic;
  KeyReader reader(section);
  for (const char* key : {"axes", "collective", "bytes"}) {
    if (!reader.Has(key)) {
      return absl::InvalidArgumentError(absl::StrCat(section.origin, ": [[traffic]] needs ", key));
    }
  }
  reader.ReadWith("axes", traffic.axes,
                  [](absl::string_view text) { return ParseAxes(text, "-+"); });
  reader.Read("name", traffic.name);
  reader.ReadWith("collective", traffic.collective, ParseTrafficKind);
  reader.ReadWith("algorithm", traffic.algorithm, ParseGroupAlgorithm);
  reader.Read("bytes", traffic.bytes);
  reader.Read("times", traffic.times, 0, 1e9);
  reader.Read("exposed", traffic.exposed, 0, 1);
  reader.Read("window", traffic.window);
  reader.Read("wraps", traffic.wraps);
  reader.Read("both_ways", traffic.both_ways);
  WEFT_RETURN_IF_ERROR(reader.Done());
  if (traffic.name.empty()) {
    traffic.name = absl::StrCat(ToString(traffic.axes), " ", ToString(traffic.collective));
  }
  return traffic;
}

absl::StatusOr<Job> JobFrom(const Sections& sections) {
  Job job;
  job.name = sections.name;
  WEFT_ASSIGN_OR_RETURN(job.mesh, ReadMesh(sections.layout, kDataInsidePipeline));
  WEFT_RETURN_IF_ERROR(ReadNode(sections.node, job.node));
  if (sections.model.has_value()) {
    TrainingSetup setup;
    WEFT_RETURN_IF_ERROR(ReadModel(*sections.model, setup));
    absl::StatusOr<std::vector<Traffic>> derived = TrafficOf(setup, job.mesh);
    if (!derived.ok()) return Annotate(derived.status(), sections.model->origin);
    job.traffic = *std::move(derived);
  }
  for (const Section& section : sections.traffic) {
    WEFT_ASSIGN_OR_RETURN(Traffic traffic, ReadTraffic(section));
    auto same = std::find_if(job.traffic.begin(), job.traffic.end(),
                             [&](const Traffic& one) { return one.name == traffic.name; });
    if (same != job.traffic.end()) {
      *same = traffic;
    } else {
      job.traffic.push_back(traffic);
    }
  }
  WEFT_RETURN_IF_ERROR(job.Validate());
  return job;
}

}  // namespace

absl::StatusOr<Job> ParseJob(const std::string& toml, const std::string& name,
                             const JobWords& words) {
  Sections sections;
  WEFT_ASSIGN_OR_RETURN(const toml::value root, ParseToml(toml, name));
  WEFT_RETURN_IF_ERROR(ReadRoot(name, root, sections));
  WEFT_RETURN_IF_ERROR(AddWords(words, sections));
  return JobFrom(sections);
}

absl::StatusOr<Job> LoadJob(const std::string& path, const JobWords& words) {
  if (path.empty()) return ParseJob("", "", words);
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, Bytes(kTomlSizeMax)));
  return ParseJob(text, path, words);
}

}  // namespace weft::topology
