#include "train/cli/cli_checks.h"

#include <string>

#include "base/result.h"

namespace penstock::train {

CLI::Validator SizeCheck() {
  return CLI::Validator(
      [](std::string& text) {
        const Result<Bytes> size = ParseBytes(text);
        return size.ok() ? std::string() : size.error().message;
      },
      "SIZE");
}

CLI::Validator WholeCheck(WholeRange range) {
  return CLI::Validator(
      [range](std::string& text) {
        const Result<uint64_t> number = ParseWhole(text, range);
        return number.ok() ? std::string() : number.error().message;
      },
      "N");
}

CLI::Validator NameCheck() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("\"\" names nothing; give a path or a name")
                            : std::string();
      },
      "");
}

}  // namespace penstock::train
