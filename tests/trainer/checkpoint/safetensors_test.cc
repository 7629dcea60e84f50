#include "trainer/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string WithHeader(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

absl::StatusOr<SafetensorsFile> OpenBytes(const ScratchFolder& folder, const std::string& content) {
  std::ofstream(folder / "f", std::ios::binary) << content;
  return SafetensorsFile::Open(folder / "f");
}

TEST(SafetensorsWriter, WritesTheFormatsBytes) {
  ScratchFolder folder;
  auto writer = SafetensorsWriter::Create(
      folder / "f", {{"a", DType::kF32, {1, 2}}, {"b", DType::kU8, {3}}}, {{"k", "v"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Append(AsBytes("01234567ab")).ok());  // across the border of two tensors
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(writer->Append(AsBytes("c")).ok());
  EXPECT_FALSE(writer->Append(AsBytes("d")).ok());
  ASSERT_TRUE(writer->Commit().ok());
  std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string file = *ReadFile(folder / "f");
  EXPECT_EQ(file, WithHeader(header, "01234567abc"));
  EXPECT_EQ(writer->file_size(), static_cast<int64_t>(file.size()));
  EXPECT_EQ(writer->file_crc32c(), Crc32c(file));
}

TEST(SafetensorsFile, ReadsBackWhatWasWritten) {
  ScratchFolder folder;
  std::vector<TensorSpec> specs = {{"f64", DType::kF64, {2}},    {"i64", DType::kI64, {}},
                                   {"f32", DType::kF32, {3, 0}}, {"bf16", DType::kBF16, {2, 2}},
                                   {"f16", DType::kF16, {1}},    {"u8", DType::kU8, {5}}};
  const std::string data = "0123456789abcdefGGGGGGGGhhhhhhhhii12345";
  auto writer = SafetensorsWriter::Create(folder / "f", specs, {{"name", "é \"quoted\""}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Append(AsBytes(data)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  auto file = SafetensorsFile::Open(folder / "f");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("name"), "é \"quoted\"");
  size_t at = 0;
  for (const TensorSpec& spec : specs) {
    const TensorInfo* tensor = file->Find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(tensor->dtype, spec.dtype);
    EXPECT_EQ(tensor->shape, spec.shape);
    absl::Span<const std::byte> bytes = file->Data(*tensor);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              data.substr(at, bytes.size()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(spec.dtype), 0U);
    at += bytes.size();
  }
  EXPECT_EQ(file->Find("none"), nullptr);
}

// Before the second of three mebibytes, of which the last is not whole.
TEST(SafetensorsWriter, AsksBeforeEachMebibyteWhetherItMayGoOn) {
  ScratchFolder folder;
  const std::vector<std::byte> data((size_t{2} << 20) + 1);
  for (const bool is_checked : {false, true}) {
    for (const int last : {2, 4}) {
      auto writer = SafetensorsWriter::Create(
          folder / "f", {{"a", DType::kU8, {static_cast<int64_t>(data.size())}}});
      ASSERT_TRUE(writer.ok()) << writer.status();
      int asked = 0;
      writer->set_may_go_on(
          [&] { return ++asked == last ? absl::CancelledError("enough") : absl::OkStatus(); });
      const absl::Status status = is_checked ? writer->Append(data) : writer->AppendUnchecked(data);
      EXPECT_EQ(status.code(), last == 2 ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
      EXPECT_EQ(asked, last == 2 ? 2 : 3);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, RefusesBadNamesAndMisalignment) {
  ScratchFolder folder;
  auto create = [&](std::vector<TensorSpec> specs) {
    return SafetensorsWriter::Create(folder / "f", specs).status();
  };
  EXPECT_FALSE(create({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}).ok());
  EXPECT_FALSE(create({{"", DType::kU8, {1}}}).ok());
  EXPECT_FALSE(create({{"__metadata__", DType::kU8, {1}}}).ok());
  EXPECT_FALSE(create({{"a", DType::kU8, {-1}}}).ok());
  EXPECT_THAT(std::string(create({{"a", DType::kU8, {3}}, {"b", DType::kF32, {1}}}).message()),
              HasSubstr("wider types first"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsFile, NamesWhatIsWrong) {
  ScratchFolder folder;
  struct Case {
    std::string content;
    const char* message;
  };
  auto one = [](const std::string& entry, const std::string& data = "12345678") {
    return WithHeader("{\"a\":" + entry + "}", data);
  };
  std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::vector<Case> cases = {
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {std::string(8, '\xFF') + "{}", "a header of 18446744073709551615 bytes"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "a header of 3 bytes in a file of 10"},
      {WithHeader("[]", ""), "not a JSON object"},
      {WithHeader(" {}", ""), "not a JSON object"},
      {WithHeader("{", ""), "not a JSON object"},
      {WithHeader("", ""), "not a JSON object"},
      {one(good, "1234567"), "the tensors take 8 bytes, but the file has 7"},
      {one(good, "123456789"), "the tensors take 8 bytes, but the file has 9"},
      {one("7"), "'a': its entry is not an object"},
      {one(R"({"dtype":"F32","shape":[2]})"), "data_offsets is missing"},
      {one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), "'F33' is not known"},
      {one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "dtype is not a text"},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "shape is not a list"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "shape holds no such number"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "shape holds no such number"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "not a pair of numbers"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "are not the 8 bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "are not the 12 bytes"},
      {one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"),
       "its shape is not possible"},
      {WithHeader("{\"a\":" + good + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  "12345678"),
       "'b' begins at byte 4 of the data, but the one before it ends at 8"},
      {one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})"), "begins at byte 4"},
      {WithHeader(R"({"__metadata__":{"k":1}})", ""), "metadata 'k' is not a text"},
      {WithHeader(R"({"__metadata__":[]})", ""), "__metadata__ is not an object"},
  };
  for (const Case& c : cases) {
    auto file = OpenBytes(folder, c.content);
    ASSERT_FALSE(file.ok()) << c.message;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(folder / "f"));
  }
  EXPECT_TRUE(OpenBytes(folder, one(good)).ok());
  EXPECT_TRUE(OpenBytes(folder, WithHeader("{}", "")).ok());
}

// Whatever the bytes: an error, or tensors that lie within the file.
TEST(SafetensorsFile, StaysInRangeOnMutatedFiles) {
  ScratchFolder folder;
  const std::string good = WithHeader(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
      "0123456789a");
  constexpr absl::string_view kInteresting = "0123456789{}[]\",:-e.\\u n\xFF";
  Random random(11);
  int opened = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= random.Below(4); ++i) {
      size_t at = random.Below(bytes.size());
      switch (random.Below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = kInteresting[random.Below(kInteresting.size())];
          break;
        case 2:
          bytes.erase(at, 1 + random.Below(8));
          break;
        default:
          bytes.insert(at, bytes.substr(random.Below(bytes.size()), random.Below(30)));
      }
      if (bytes.empty()) bytes = "x";
    }
    auto file = OpenBytes(folder, bytes);
    if (!file.ok()) continue;
    ++opened;
    uint32_t crc = 0;
    for (const TensorInfo& tensor : file->tensors()) crc = Crc32c(file->Data(tensor), crc);
  }
  EXPECT_GT(opened, 10);
  EXPECT_LT(opened, 1450);
}

TEST(SafetensorsFile, BearsDeepNesting) {
  ScratchFolder folder;
  EXPECT_FALSE(OpenBytes(folder, WithHeader("{\"a\":" + std::string(1000000, '['), "")).ok());
}

TEST(DType, HasANameAndASizeEach) {
  for (const char* name : {"BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32",
                           "I64", "U64", "F64"}) {
    EXPECT_EQ(NameOf(*ParseDType(name)), name);
  }
  EXPECT_EQ(SizeOf(DType::kBF16), 2);
}

}  // namespace
}  // namespace weft::train
