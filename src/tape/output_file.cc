#include "moetape/output_file.h"

#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "tape/names.h"
#include "tape/output.h"

namespace moetape::inline v0 {

using tape::HiddenFile;
using tape::Target;

class OutputFile::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(const std::string& path, bool overwrite) {
    return guard_memory(path, [&]() -> Result<std::unique_ptr<Impl>> {
      MOETAPE_ASSIGN(Target target, Target::resolve(path));
      if (!overwrite) MOETAPE_TRY(target.check_free());
      MOETAPE_ASSIGN(auto file, HiddenFile::create(target));
      return std::make_unique<Impl>(std::move(target), std::move(file), overwrite);
    });
  }

  Impl(Target target, std::unique_ptr<HiddenFile> file, bool overwrite)
      : target_(std::move(target)), file_(std::move(file)), overwrite_(overwrite) {}

  const std::string& hidden_path() const { return file_->path(); }

  Status write(std::span<const std::byte> bytes) {
    MOETAPE_TRY(check_open());
    MOETAPE_TRY(file_->write(size_, bytes));
    size_ += std::ssize(bytes);
    return {};
  }

  Status finish() {
    MOETAPE_TRY(check_open());
    MOETAPE_TRY(file_->sync());
    MOETAPE_TRY(file_->rename(target_.name, overwrite_));
    file_->keep();
    finished_ = true;
    return tape::sync_folder(target_.folder);
  }

 private:
  Status check_open() const {
    if (!finished_) return {};
    return fail(ErrorCode::kClosed, "{}: expected a file that is being written, got one that is finished",
                target_.path());
  }

  Target target_;
  std::unique_ptr<HiddenFile> file_;
  bool overwrite_;
  bool finished_ = false;
  int64_t size_ = 0;
};

OutputFile::OutputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

Result<OutputFile> OutputFile::create(const std::string& path, bool overwrite) {
  MOETAPE_ASSIGN(std::unique_ptr<Impl> impl, Impl::create(path, overwrite));
  return OutputFile(std::move(impl));
}

Status OutputFile::write(std::span<const std::byte> bytes) { return impl_->write(bytes); }
const std::string& OutputFile::hidden_path() const { return impl_->hidden_path(); }
Status OutputFile::finish() { return impl_->finish(); }

}  // namespace moetape::inline v0
