// Both spellings of a mesh.
#include "topology/job/mesh_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace weft::topology {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string TextOf(const absl::StatusOr<Mesh>& mesh) {
  return mesh.ok() ? mesh->ToText() : std::string(mesh.status().message());
}

std::string Read(absl::string_view text) { return TextOf(ParseMesh(text)); }

std::string ReadInOrder(absl::string_view text, absl::Span<const Axis> order) {
  return TextOf(ReadMesh(MeshSection(text, "--layout").value(), order));
}

TEST(MeshText, BothSpellingsSayTheSame) {
  EXPECT_EQ(Read("tp8,pp4,dp2"), "tp8,pp4,dp2");
  EXPECT_EQ(Read("tp=8,pp=4,dp=2"), "tp8,pp4,dp2");
  EXPECT_EQ(Read("tensor=8, pipeline4 ,dp = 2"), "tp8,pp4,dp2");
  EXPECT_EQ(Read("cp2,ep3"), "cp2,ep3");
}

TEST(MeshText, TheOrderIsTheCallersOrThatOfTheTextOrNamed) {
  EXPECT_EQ(ReadInOrder("pp4,dp2,tp8", kDataInsidePipeline), "tp8,dp2,pp4");
  EXPECT_EQ(Read("pp=4,dp=2,tp=8"), "pp4,dp2,tp8");
  for (absl::Span<const Axis> order : {kAsWritten, absl::MakeConstSpan(kDataInsidePipeline)}) {
    EXPECT_EQ(ReadInOrder("tp8,dp2,pp4,nesting=tp-pipeline-dp", order), "tp8,pp4,dp2");
  }
  EXPECT_EQ(Read("dp2,nesting=tp-cp-ep-dp-pp"), "tp1,cp1,ep1,dp2,pp1");
  EXPECT_EQ(Read("dp2,pp1,nesting=dp-tp"), "dp2,tp1");
}

TEST(MeshText, WhatAMeshWritesReadsBackTheSame) {
  for (const char* text : {"tp8,pp8,dp256", "dp1", "pp2,tp1,ep4,dp3,cp5"}) {
    EXPECT_EQ(Read(text), text);
  }
}

TEST(MeshText, TheLastOfAKeyCountsInASection) {
  Section section = MeshSection("tp8,dp2", "job.toml:1").value();
  Section more = MeshSection("data=16", "--layout").value();
  section.entries.insert(section.entries.end(), more.entries.begin(), more.entries.end());
  EXPECT_EQ(ReadMesh(section, kDataInsidePipeline)->ToText(), "tp8,dp16");
  // Whichever spelling each has.
  section.entries.push_back({"dp", "4", "--layout"});
  EXPECT_EQ(ReadMesh(section, kDataInsidePipeline)->ToText(), "tp8,dp4");
}

TEST(MeshText, SaysWhatIsWrong) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "'' is no axis and its size"},
           {"tp", "'tp' is no axis and its size, as tp8 or tp=8"},
           {"8", "'8' is no axis and its size"},
           {"tp=", "is no axis and its size"},
           {"=8", "is no axis and its size"},
           {"tp8,,dp2", "'' is no axis and its size"},
           {"tp0", "layout.tp = 0: must be a whole number from 1"},
           {"tp-2", "layout.tp = -2: must be a whole number"},
           {"tp=x", "layout.tp = x: must be a whole number"},
           {"tp8x", "layout.tp = 8x: must be a whole number"},
           {"tp8,tp2", "'tp2' names an axis again"},
           {"tp8,tensor=2", "names an axis again"},
           {"datta=2", "no key 'datta'; nearest: data"},
           {"tp8,world2", "no key 'world'"},
           {"tp1048576,dp2", "more than 1048576 ranks"},
           {"tp2,dp2,nesting=dp", "nesting = dp leaves out tensor"},
           {"tp2,nesting=tp-tensor", "tensor is named twice"},
           {"tp2,nesting=tp-x", "'x' is no axis"}}) {
    absl::StatusOr<Mesh> mesh = ParseMesh(text);
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(mesh.status().message()),
                AllOf(HasSubstr(what), HasSubstr("layout '" + text + "'")));
  }
}

}  // namespace
}  // namespace weft::topology
