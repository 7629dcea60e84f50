#include "trainer/huggingface/model_writer.h"

#include <vector>

#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/tensor_rows.h"

namespace weft::train {

absl::Status WriteTensors(const WrittenModel& model, const ParameterBytes& parameter,
                          const std::string& path) {
  const std::vector<TensorRow> rows = TensorRows(model.config);
  std::vector<TensorSpec> specs;
  specs.reserve(rows.size());
  for (const TensorRow& row : rows) specs.push_back({row.theirs, model.dtype, row.shape});
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  const int64_t width = SizeOf(model.dtype);
  std::vector<std::byte> theirs;
  for (const TensorRow& row : rows) {
    theirs.assign(static_cast<size_t>(row.elements() * width), std::byte{0});
    if (!row.ours.empty()) {
      WEFT_ASSIGN_OR_RETURN(const absl::Span<const std::byte> ours, parameter(row.ours));
      ToTheirs(row, width, ours, absl::MakeSpan(theirs));
    }
    WEFT_RETURN_IF_ERROR(writer.Append(theirs));
  }
  return writer.Commit();
}

absl::Status WriteModel(const WrittenModel& model, const ParameterBytes& parameter,
                        const std::string& folder) {
  WEFT_RETURN_IF_ERROR(MakeFolders(folder));
  WEFT_RETURN_IF_ERROR(WriteTensors(model, parameter, folder + "/model.safetensors"));
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(folder + "/config.json",
                                           ModelJson(model.config, model.dtype, model.eod_id)));
  WEFT_ASSIGN_OR_RETURN(const std::string tokenizer, ReadFile(model.tokenizer));
  return WriteFileAtomically(folder + "/tokenizer.model", tokenizer);
}

}  // namespace weft::train
