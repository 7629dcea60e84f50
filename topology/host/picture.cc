#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/xml_text.h"
#include "topology/host/render.h"

namespace weft::topology {
namespace {

// Sizes in pixels.
constexpr int kMargin = 20;
constexpr int kTop = 64;   // below the title
constexpr int kBox = 132;  // width of a device
constexpr int kBoxHeight = 44;
constexpr int kGap = 12;
constexpr int kLevel = 84;  // from a switch to what hangs on it
constexpr int kNodeHeight = 52;
constexpr int kFindingLine = 18;
constexpr int kWidthMax = 1700;  // then columns go on below
constexpr double kLetter = 6.6;  // of a finding, on average
constexpr size_t kTextMax = 22;  // letters of a box

// Okabe and Ito's palette, told apart by colour-blind readers too.
const char* ColorOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kGpu:
      return "#009E73";
    case DeviceKind::kNic:
      return "#0072B2";
    case DeviceKind::kSwitch:
      return "#6b6b6b";
    case DeviceKind::kNvSwitch:
      return "#CC79A7";
    default:
      return "#9a9a9a";
  }
}

std::string Shortened(const std::string& text) {
  return text.size() > kTextMax ? text.substr(0, kTextMax - 2) + ".." : text;
}

class Picture {
 public:
  explicit Picture(const MachineReport& report) : report_(report), machine_(report.machine) {}

  std::string Draw() {
    int x = kMargin;
    int width = 480;
    auto place = [&](int numa) {
      if (x > kMargin && x + ColumnWidth(numa) > kWidthMax) {
        x = kMargin;
        top_ = bottom_ + kGap * 3;
      }
      x = Column(numa, x);
      width = std::max(width, x + kMargin - kGap * 3);
    };
    for (int numa = 0; numa < static_cast<int>(machine_.numa_nodes().size()); ++numa) {
      place(numa);
    }
    if (!Children(-1, -1).empty()) place(-1);
    int y = bottom_ + kGap * 2;
    for (const Finding& finding : report_.findings) {
      y += kFindingLine;
      const std::string line = absl::StrCat("! ", finding.subject, " ", finding.sentence);
      Text(kMargin, y, line, 12, "#D55E00");
      width = std::max(width, kMargin * 2 + static_cast<int>(kLetter * line.size()));
    }
    return absl::StrCat(
        absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                        "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n"
                        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                        width, y + kMargin, width, y + kMargin),
        absl::StrFormat("<text x=\"%d\" y=\"28\" font-size=\"18\">%s</text>\n"
                        "<text x=\"%d\" y=\"48\" font-size=\"12\" fill=\"#555\">%s</text>\n",
                        kMargin, XmlText(machine_.name().empty() ? "host" : machine_.name()),
                        kMargin, XmlText(machine_.Describe())),
        lines_, boxes_, "</svg>\n");
  }

 private:
  std::vector<int> Children(int parent, int numa) const {
    std::vector<int> found;
    for (size_t i = 0; i < machine_.devices().size(); ++i) {
      const Device& device = machine_.devices()[i];
      if (device.parent == parent && (parent >= 0 || device.numa == numa)) {
        found.push_back(static_cast<int>(i));
      }
    }
    return found;
  }

  // Boxes side by side that the device needs.
  int Width(int device) const {
    int width = 0;
    for (int child : Children(device, -1)) width += Width(child);
    return std::max(width, 1);
  }

  void Text(int x, int y, absl::string_view text, int size, const char* color) {
    absl::StrAppendFormat(&boxes_,
                          "<text x=\"%d\" y=\"%d\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y,
                          size, color, XmlText(text));
  }

  void Box(int x, int y, int width, int height, const char* color, bool odd) {
    absl::StrAppendFormat(&boxes_,
                          "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\" fill=\"%s\" "
                          "stroke=\"%s\" stroke-width=\"%d\"/>\n",
                          x, y, width, height, color, odd ? "#D55E00" : "#333", odd ? 4 : 1);
  }

  int ColumnWidth(int numa) const {
    int slots = 0;
    for (int device : Children(-1, numa)) slots += Width(device);
    return std::max(slots, 2) * (kBox + kGap) - kGap;
  }

  // Returns where the next column begins.
  int Column(int numa, int x) {
    const int width = ColumnWidth(numa);
    Box(x, top_, width, kNodeHeight, "#F0E442", false);
    std::string title = "NUMA node not told";
    std::string cpus;
    if (numa >= 0) {
      const NumaNode& node = machine_.numa_nodes()[static_cast<size_t>(numa)];
      title = absl::StrCat("NUMA node ", node.os_index,
                           node.package < 0 ? "" : absl::StrCat(", package ", node.package));
      cpus = absl::StrCat(
          "CPUs ", weft::ToString(node.cpus),
          node.memory.has_value() ? absl::StrCat(", ", weft::ToString(*node.memory)) : "");
    }
    Text(x + 8, top_ + 20, title, 14, "#000");
    Text(x + 8, top_ + 40, cpus.substr(0, static_cast<size_t>(width) / 7), 12, "#000");
    bottom_ = std::max(bottom_, top_ + kNodeHeight);
    int at = x;
    for (int device : Children(-1, numa)) at = Subtree(device, at, top_ + kNodeHeight, 1);
    return x + width + kGap * 3;
  }

  int Subtree(int index, int x, int parent_bottom, int level) {
    const Device& device = machine_.device(index);
    const int slots = Width(index);
    const int width = slots * (kBox + kGap) - kGap;
    const int y = top_ + kNodeHeight + kLevel * level - kBoxHeight;
    absl::StrAppendFormat(&lines_,
                          "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#333\" "
                          "stroke-width=\"%d\"/>\n",
                          x + width / 2, parent_bottom, x + width / 2, y,
                          std::clamp(device.link.lanes / 4, 1, 4));
    if (device.link.known()) {
      Text(x + width / 2 + 5, parent_bottom + 24, ToString(device.link), 10, "#555");
    }
    const bool odd = std::any_of(
        report_.findings.begin(), report_.findings.end(),
        [&](const Finding& f) { return f.subject == Label(device) || f.subject == device.name; });
    Box(x, y, width, kBoxHeight, ColorOf(device.kind), odd);
    Text(x + 6, y + 18, Shortened(Label(device)), 12, "#fff");
    std::string below = device.address.has_value() ? ToString(*device.address) : "";
    if (device.kind == DeviceKind::kNic && LineRate(device) > Bandwidth()) {
      absl::StrAppend(&below, " ", weft::ToString(LineRate(device)));
    }
    Text(x + 6, y + 35, Shortened(below), 10, "#fff");
    bottom_ = std::max(bottom_, y + kBoxHeight);
    int at = x;
    for (int child : Children(index, -1)) at = Subtree(child, at, y + kBoxHeight, level + 1);
    return x + width + kGap;
  }

  const MachineReport& report_;
  const Machine& machine_;
  std::string lines_, boxes_;
  int top_ = kTop;  // of the row of columns
  int bottom_ = kTop;
};

}  // namespace

std::string MachineSvg(const MachineReport& report) { return Picture(report).Draw(); }

}  // namespace weft::topology
