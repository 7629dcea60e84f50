// Answers of weft-plan collective for people (texts, tables, pictures) and for programs (JSON).
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_REPORT_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/types/span.h"
#include "tools/plan/collective_answer.h"
#include "tools/plan/collective_picture.h"

namespace weft::plan {

std::string Microseconds(int64_t nanoseconds);  // "12.3"

// The choice and its runners-up, `count` lines.
std::string Explanation(const CollectiveGroup& group, const CollectiveAnswer& answer, size_t count);
// How far the choices are from what the simulator finds best.
std::string RegretText(absl::Span<const CollectiveAnswer> answers);
// A line a size.
std::string Table(const CollectiveGroup& group, absl::Span<const CollectiveAnswer> answers);

nlohmann::ordered_json PlanJson(const CollectiveGroup& group, const CollectiveAnswer& answer,
                                const collectives::planner::Plan& plan);
nlohmann::ordered_json Json(const CollectiveGroup& group,
                            absl::Span<const CollectiveAnswer> answers);

Picture PictureOf(const CollectiveGroup& group, absl::Span<const CollectiveAnswer> answers);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_REPORT_H_
