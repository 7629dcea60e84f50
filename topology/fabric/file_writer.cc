#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "topology/fabric/file.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

// The shortest form that ParseBandwidth reads as exactly this.
std::string Text(Bandwidth bandwidth) {
  for (int digits : {6, 15, 17}) {
    std::string text = absl::StrFormat("%.*gGbps", digits, bandwidth.gigabits_per_second());
    absl::StatusOr<Bandwidth> read = ParseBandwidth(text);
    if (read.ok() && *read == bandwidth) return Quoted(text);
  }
  return Quoted(absl::StrFormat("%.30fB/s", bandwidth.bytes_per_second()));
}

std::string Text(Bytes bytes) {
  int64_t count = bytes.count();
  if (count > 0 && count % (1 << 20) == 0) return absl::StrCat("\"", count >> 20, "MiB\"");
  if (count > 0 && count % (1 << 10) == 0) return absl::StrCat("\"", count >> 10, "KiB\"");
  return absl::StrCat(count);
}

std::string Text(absl::Duration duration) { return Quoted(absl::FormatDuration(duration)); }

// Cables with one first node, one after the other: "[from, to, NIC]", `count` of each.
struct Row {
  std::vector<std::string> from;
  std::string to;
  std::string nics;  // "": as they come
};

class Writer {
 public:
  explicit Writer(const Fabric& fabric)
      : fabric_(fabric), next_nic_(static_cast<size_t>(fabric.nodes()), 0) {}

  std::string Write() {
    text_ = absl::StrFormat("# %d hosts, %d switches, %d cables\n", fabric_.hosts().size(),
                            fabric_.switches().size(), fabric_.links() / 2);
    WriteNodes();
    WriteCables();
    WriteFaults();
    return std::move(text_);
  }

 private:
  void WriteNodes() {
    for (int i = 0; i < fabric_.nodes();) {
      const FabricNode& first = fabric_.node(NodeId(i));
      std::vector<std::string> names;
      auto is_alike = [&](const FabricNode& node) {
        return node.kind == first.kind && node.tier == first.tier && node.pod == first.pod &&
               node.plane == first.plane && node.latency == first.latency &&
               node.buffer == first.buffer;
      };
      for (; i < fabric_.nodes() && is_alike(fabric_.node(NodeId(i))); ++i) {
        names.push_back(fabric_.node(NodeId(i)).name);
      }
      bool is_host = first.kind == NodeKind::kHost;
      absl::StrAppend(&text_, "\n[[nodes]]\n", is_host ? "hosts" : "switches", " = ",
                      Quoted(CompressNames(names)), "\n");
      if (!is_host) absl::StrAppend(&text_, "tier = ", first.tier, "\n");
      if (first.pod >= 0) absl::StrAppend(&text_, "pod = ", first.pod, "\n");
      if (first.plane >= 0) absl::StrAppend(&text_, "plane = ", first.plane, "\n");
      if (first.latency != absl::ZeroDuration()) {
        absl::StrAppend(&text_, "latency = ", Text(first.latency), "\n");
      }
      if (first.buffer != Bytes(0)) absl::StrAppend(&text_, "buffer = ", Text(first.buffer), "\n");
    }
  }

  // What cables of one table have in common.
  struct Kind {
    Bandwidth bandwidth;
    absl::Duration delay;
    Bytes buffer, reverse_buffer;
    bool has_nic = false;
    size_t count = 1;
    bool operator==(const Kind&) const = default;
  };

  Kind KindOf(const FabricLink& link) const {
    return {link.nominal, link.delay, link.buffer, fabric_.link(link.reverse).buffer,
            link.nic >= 0};
  }
  const FabricLink& CableAt(int i) const { return fabric_.link(LinkId(2 * i)); }

  void WriteCables() {
    int cables = fabric_.links() / 2;
    std::optional<Kind> kind;
    std::vector<Row> rows;
    for (int i = 0; i < cables;) {
      const FabricLink& first = CableAt(i);
      Kind next = KindOf(first);
      int end = i + 1;
      while (end < cables && CableAt(end).source == first.source && KindOf(CableAt(end)) == next) {
        ++end;
      }
      next.count = Copies(i, end);
      if (kind.has_value() && !(next == *kind)) {
        WriteTable(*kind, rows);
        rows.clear();
      }
      kind = next;
      Row row = RowOf(i, end, next.count);
      if (!rows.empty() && rows.back().to == row.to && rows.back().nics == row.nics &&
          (row.nics.empty() || absl::string_view(row.nics).find('"') == absl::string_view::npos)) {
        rows.back().from.push_back(row.from[0]);
      } else {
        rows.push_back(std::move(row));
      }
      i = end;
    }
    if (kind.has_value()) WriteTable(*kind, rows);
  }

  // How often each cable between two switches of [begin, end) is there; 1 unless all are alike.
  size_t Copies(int begin, int end) const {
    if (CableAt(begin).nic >= 0) return 1;
    auto block = [&](int at) {
      int next = at;
      while (next < end && CableAt(next).target == CableAt(at).target) ++next;
      return next - at;
    };
    int copies = block(begin);
    for (int i = begin; i < end; i += copies) {
      if (block(i) != copies) return 1;
    }
    return copies <= 1024 ? static_cast<size_t>(copies) : 1;
  }

  Row RowOf(int begin, int end, size_t copies) {
    Row row;
    row.from = {fabric_.node(CableAt(begin).source).name};
    std::vector<std::string> to;
    std::vector<std::string> nics;
    bool in_order = true;  // every NIC is the next of its host
    for (int i = begin; i < end; i += static_cast<int>(copies)) {
      const FabricLink& cable = CableAt(i);
      to.push_back(fabric_.node(cable.target).name);
      if (cable.nic < 0) continue;
      bool is_host = fabric_.node(cable.source).kind == NodeKind::kHost;
      int& next = next_nic_[(is_host ? cable.source : cable.target).index()];
      in_order = in_order && cable.nic == next;
      next = std::max(next, cable.nic + 1);
      nics.push_back(absl::StrCat(cable.nic));
    }
    row.to = CompressNames(to);
    if (in_order || nics.empty()) return row;
    if (std::equal(nics.begin() + 1, nics.end(), nics.begin())) {
      row.nics = nics[0];
    } else {
      std::string list = CompressNames(nics);
      if (absl::StartsWith(list, "[")) list = list.substr(1, list.size() - 2);
      row.nics = Quoted(list);
    }
    return row;
  }

  void WriteTable(const Kind& kind, const std::vector<Row>& rows) {
    absl::StrAppend(&text_, "\n[[cables]]\nbandwidth = ", Text(kind.bandwidth),
                    "\ndelay = ", Text(kind.delay), "\n");
    if (kind.buffer != Bytes(0)) absl::StrAppend(&text_, "buffer = ", Text(kind.buffer), "\n");
    if (kind.reverse_buffer != kind.buffer) {
      absl::StrAppend(&text_, "reverse_buffer = ", Text(kind.reverse_buffer), "\n");
    }
    if (kind.count > 1) absl::StrAppend(&text_, "count = ", kind.count, "\n");
    absl::StrAppend(&text_, "pairs = [\n");
    for (const Row& row : rows) {
      absl::StrAppend(&text_, "  [", Quoted(CompressNames(row.from)), ", ", Quoted(row.to),
                      row.nics.empty() ? "" : ", ", row.nics, "],\n");
    }
    absl::StrAppend(&text_, "]\n");
  }

  // Always with its number, which stands for one cable only.
  std::string CableName(LinkId id) const {
    std::string name = fabric_.Name(id);
    return Quoted(absl::StrContains(name, '#') ? name : absl::StrCat(name, "#0"));
  }

  void WriteFaults() {
    std::vector<std::string> down;
    std::vector<std::string> degraded;
    for (int i = 0; i < fabric_.links(); i += 2) {
      const FabricLink& link = fabric_.link(LinkId(i));
      if (!link.up) down.push_back(CableName(LinkId(i)));
      if (link.bandwidth != link.nominal) {
        degraded.push_back(absl::StrCat(CableName(LinkId(i)), " = ", Text(link.bandwidth), "\n"));
      }
    }
    if (!down.empty()) {
      absl::StrAppend(&text_, "\n[faults]\ndown = [\n  ", absl::StrJoin(down, ",\n  "), ",\n]\n");
    }
    if (!degraded.empty()) {
      absl::StrAppend(&text_, "\n[faults.degraded]\n", absl::StrJoin(degraded, ""));
    }
  }

  const Fabric& fabric_;
  std::vector<int> next_nic_;  // as the reader will count them
  std::string text_;
};

}  // namespace

std::string WriteFabric(const Fabric& fabric) { return Writer(fabric).Write(); }

bool SameFabric(const Fabric& a, const Fabric& b) {
  if (a.nodes() != b.nodes() || a.links() != b.links()) return false;
  for (int i = 0; i < a.nodes(); ++i) {
    const FabricNode& x = a.node(NodeId(i));
    const FabricNode& y = b.node(NodeId(i));
    if (x.name != y.name || x.kind != y.kind || x.tier != y.tier || x.pod != y.pod ||
        x.plane != y.plane || x.latency != y.latency || x.buffer != y.buffer) {
      return false;
    }
  }
  for (int i = 0; i < a.links(); ++i) {
    const FabricLink& x = a.link(LinkId(i));
    const FabricLink& y = b.link(LinkId(i));
    if (x.source != y.source || x.target != y.target || x.bandwidth != y.bandwidth ||
        x.nominal != y.nominal || x.delay != y.delay || x.buffer != y.buffer ||
        x.reverse != y.reverse || x.nic != y.nic || x.up != y.up) {
      return false;
    }
  }
  return true;
}

}  // namespace weft::topology
