// What happens around the files of tapes: names, links, rights, full disks, several writers, several files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>

#include "base/fail.h"
#include "base/sanitizers.h"
#include "tape/index.h"
#include "tape/tape_test_util.h"

namespace moetape::inline v0 {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using TapeWriting = InFolder;

RouteSpec small_spec() { return make_spec({.layers = {3, 4, 7}, .top_k = 2, .num_experts = 8}); }

Routes rows(int64_t num_rows, uint64_t seed = 1) { return tell(small_spec(), {.num_rows = num_rows}, seed); }

// In place of what stands there.
void write_tape(const std::string& path, const std::vector<Routes>& routes, TapeOptions options = {}) {
  options.overwrite = true;
  TapeWriter writer = value_of(TapeWriter::create(path, small_spec(), options));
  for (const Routes& one : routes) expect_ok(writer.append(one));
  expect_ok(writer.finish());
}

// What a child process returns from `story`, which must not use gtest.
int in_child(const std::function<int()>& story) {
  const pid_t child = fork();
  if (child == 0) _exit(story());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(TapeWriting, NothingStandsUnderTheNameBeforeTheEnd) {
  TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec()));
  expect_ok(writer.append(rows(3)));
  EXPECT_FALSE(fs::exists(path("run.tape")));
  ASSERT_EQ(names().size(), 1u);
  EXPECT_THAT(names()[0], testing::MatchesRegex("\\.run\\.tape\\.[0-9a-f]*\\.part"));
  expect_ok(writer.finish());
  EXPECT_THAT(names(), ElementsAre("run.tape"));
  expect_error(writer.finish(), ErrorCode::kClosed, "run.tape: expected a tape that is being written");
  expect_error(writer.append(rows(3)), ErrorCode::kClosed, "finished");
  EXPECT_EQ(writer.num_sequences(), 1);
}

TEST_F(TapeWriting, AWriterThatGoesAwayLeavesNothing) {
  write_tape(path("run.tape"), {rows(2)});
  {
    TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec(),
                                                    {.layer_groups = {{3}, {4}, {7}}, .overwrite = true}));
    expect_ok(writer.append(rows(200'000)));
    TapeWriter moved = std::move(writer);
    expect_ok(moved.append(rows(3)));
  }
  EXPECT_THAT(names(), ElementsAre("run.tape"));
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 2);
}

TEST_F(TapeWriting, ATapeThatIsReplacedCanStillBeRead) {
  write_tape(path("run.tape"), {rows(4, 1)});
  const Tape old = value_of(Tape::open(path("run.tape")));
  write_tape(path("run.tape"), {rows(5, 2)});
  EXPECT_EQ(value_of(old.read(0)), rows(4, 1));
  EXPECT_EQ(value_of(value_of(Tape::open(path("run.tape"))).read(0)), rows(5, 2));
}

TEST_F(TapeWriting, OfTwoWritersTheFirstToFinishHasTheName) {
  TapeWriter first = value_of(TapeWriter::create(path("run.tape"), small_spec()));
  TapeWriter second = value_of(TapeWriter::create(path("run.tape"), small_spec()));
  expect_ok(first.append(rows(3, 1)));
  expect_ok(second.append(rows(4, 2)));
  expect_ok(first.append(rows(5, 3)));
  expect_ok(second.finish());
  expect_error(first.finish(), ErrorCode::kConflict, "run.tape: expected no file there");
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 4);
  expect_error(TapeWriter::create(path("run.tape"), small_spec()), ErrorCode::kConflict, "run.tape");
  fs::rename(path("run.tape"), path("second.tape"));
  expect_ok(first.finish());
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 8);
  EXPECT_THAT(names(), ElementsAre("run.tape", "second.tape"));
}

TEST_F(TapeWriting, OfTwoWritersThatOverwriteTheLastHasTheName) {
  TapeWriter first = value_of(TapeWriter::create(path("run.tape"), small_spec(), {.overwrite = true}));
  TapeWriter second = value_of(TapeWriter::create(path("run.tape"), small_spec(), {.overwrite = true}));
  expect_ok(first.append(rows(3, 1)));
  expect_ok(second.append(rows(4, 2)));
  expect_ok(first.append(rows(5, 3)));
  expect_ok(second.finish());
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 4);
  expect_ok(first.finish());
  const Tape tape = value_of(Tape::open(path("run.tape")));
  EXPECT_EQ(tape.num_rows(), 8);
  EXPECT_THAT(tape.verify(), IsEmpty());
  EXPECT_THAT(names(), ElementsAre("run.tape"));
}

TEST_F(TapeWriting, LinksStayAndTheirTargetsAreReplaced) {
  fs::create_directories(folder_ / "disk");
  write_tape(path("disk/real.tape"), {rows(2)});
  fs::create_symlink("disk/real.tape", folder_ / "link.tape");
  fs::create_symlink(folder_ / "link.tape", folder_ / "link_to_link.tape");
  write_tape(path("link_to_link.tape"), {rows(7)});
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.tape"));
  EXPECT_EQ(value_of(Tape::open(path("disk/real.tape"))).num_rows(), 7);
  EXPECT_EQ(value_of(Tape::open(path("link.tape"))).num_rows(), 7);
  fs::create_symlink("disk/new.tape", folder_ / "to_nothing.tape");
  write_tape(path("to_nothing.tape"), {rows(3)});
  EXPECT_EQ(value_of(Tape::open(path("disk/new.tape"))).num_rows(), 3);

  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  expect_error(TapeWriter::create(path("a"), small_spec()), ErrorCode::kIo,
               "Too many levels of symbolic links");
  expect_error(Tape::open(path("a")), ErrorCode::kIo, "Too many levels");
}

TEST_F(TapeWriting, WhatCannotBeWrittenIsRefusedBeforeAnythingIs) {
  expect_error(TapeWriter::create(path("none/run.tape"), small_spec()), ErrorCode::kIo,
               "No such file or directory");
  expect_error(TapeWriter::create(folder_, small_spec()), ErrorCode::kInvalidArgument, "got a folder");
  expect_error(TapeWriter::create(path("x/"), small_spec()), ErrorCode::kInvalidArgument, "got a folder");
  expect_error(TapeWriter::create("/dev/null", small_spec()), ErrorCode::kInvalidArgument,
               "got something else");
  expect_error(TapeWriter::create("", small_spec()), ErrorCode::kInvalidArgument,
               "path: expected the name of a file");
  expect_error(TapeWriter::create(std::string("a\0b", 3), small_spec()), ErrorCode::kInvalidArgument, "path");
  expect_error(Tape::open(std::string("a\0b", 3)), ErrorCode::kInvalidArgument, "path");
  expect_error(Tape::open(path("none.tape")), ErrorCode::kIo, "none.tape: cannot be opened: No such file");
  expect_error(Tape::open(folder_), ErrorCode::kInvalidArgument, "got a folder");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_error(Tape::open(path("pipe")), ErrorCode::kInvalidArgument, "got something else");
  fs::remove(path("pipe"));
  for (const auto& groups : std::vector<std::vector<std::vector<int32_t>>>{
           {{3, 4}}, {{3, 4}, {4, 7}}, {{4, 3}, {7}}, {{3, 4, 7}, {}}, {{3, 4}, {7, 8}}}) {
    expect_error(TapeWriter::create(path("run.tape"), small_spec(), {.layer_groups = groups}),
                 ErrorCode::kInvalidArgument, "layer_groups: expected");
  }
  expect_error(TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = -1}),
               ErrorCode::kInvalidArgument, "max_file_bytes");
  RouteSpecFields fields = small_spec().fields();
  fields.model = std::string(70'000, 'm');
  expect_error(TapeWriter::create(path("run.tape"), make_spec(fields)), ErrorCode::kCapacity,
               "header: expected at most 65536 bytes");
  fields.model = "\xff";
  expect_error(TapeWriter::create(path("run.tape"), make_spec(fields)), ErrorCode::kInvalidArgument,
               "model: expected UTF-8");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TapeWriting, AUserWithoutRightsIsToldSo) {
  write_tape(path("run.tape"), {rows(2)});
  fs::permissions(folder_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(path("run.tape"), fs::perms::owner_read);
  const int code = in_child([&] {
    constexpr uid_t kNobody = 65'534;
    if (getuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) return 9;
    if (getuid() != kNobody) return 0;  // a user who owns the folder proves nothing
    const auto writer = TapeWriter::create(path("run.tape"), small_spec(), {.overwrite = true});
    if (writer || writer.error().code != ErrorCode::kIo) return 1;
    if (writer.error().message.find("cannot be made: Permission denied") == std::string::npos) return 2;
    const auto tape = Tape::open(path("run.tape"));
    if (tape || tape.error().code != ErrorCode::kIo) return 3;
    return tape.error().message.find("Permission denied") == std::string::npos ? 4 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(names(), ElementsAre("run.tape"));
}

// A disk that is full in the middle: a limit on the size of files that a child process sets for itself.
TEST_F(TapeWriting, AFullDiskLosesNothingThatWasThere) {
  write_tape(path("run.tape"), {rows(2)});
  const Routes much = rows(200'000);
  const auto story = [&](bool ignore_signal, const TapeOptions& options) {
    return in_child([&, ignore_signal] {
      std::signal(SIGXFSZ, ignore_signal ? SIG_IGN : SIG_DFL);
      const rlimit core{0, 0};
      setrlimit(RLIMIT_CORE, &core);
      const rlimit limit{1 << 16, 1 << 16};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
      TapeOptions overwriting = options;
      overwriting.overwrite = true;
      auto writer = TapeWriter::create(path("run.tape"), small_spec(), overwriting);
      if (!writer || !writer->append(rows(10))) return 2;
      const Status status = writer->append(much);
      if (status || status.error().code != ErrorCode::kIo) return 3;
      if (status.error().message.find("File too large") == std::string::npos) return 4;
      if (writer->num_sequences() != 1 || writer->num_rows() != 10) return 5;
      if (!writer->append(rows(20)) || !writer->finish()) return 6;  // what fits still does
      return 0;
    });
  };
  EXPECT_EQ(story(true, {}), 0);
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 30);
  EXPECT_THAT(value_of(Tape::open(path("run.tape"))).verify(), IsEmpty());
  EXPECT_EQ(story(true, {.codec = Codec::kBitpack, .layer_groups = {{3}, {4, 7}}}), 0);
  EXPECT_THAT(value_of(Tape::open(path("run.tape"))).verify(), IsEmpty());
  EXPECT_THAT(names(), ElementsAre("run.tape"));

  EXPECT_EQ(story(false, {}), 1000 + SIGXFSZ) << "signals are the process's own affair";
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 30);
}

TEST_F(TapeWriting, AFinishThatFailsCanBeTriedAgain) {
  const int code = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    auto writer = TapeWriter::create(path("run.tape"), small_spec());
    if (!writer || !writer->append(rows(100))) return 1;
    limit.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = writer->finish();
    if (status || status.error().code != ErrorCode::kIo || fs::exists(path("run.tape"))) return 2;
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    return writer->append(rows(7)) && writer->finish() ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 107);
  EXPECT_THAT(value_of(Tape::open(path("run.tape"))).verify(), IsEmpty());
}

TEST_F(TapeWriting, ATapeThatIsCutWhileItIsOpenIsRefused) {
  write_tape(path("run.tape"), {rows(200'000)});
  const Tape tape = value_of(Tape::open(path("run.tape")));
  fs::resize_file(path("run.tape"), 100'000);
  expect_error(tape.read(0), ErrorCode::kCorruptData, "as when it was opened, got 100000");
}

// Rows of which the second half cannot be had.
class BrokenSource final : public RowSource {
 public:
  const RouteSpec& spec() const override { return spec_; }
  int64_t start() const override { return 0; }
  int64_t num_rows() const override { return 3000; }
  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override {
    if (first > 0) return fail(ErrorCode::kTimeout, "the store is gone");
    std::memset(rows, 0, static_cast<size_t>(count * spec_.row_bytes()));
    std::fill_n(reasons, count, Reason::kLost);
    return {};
  }

 private:
  RouteSpec spec_ = small_spec();
};

TEST_F(TapeWriting, WhatFailsAddsNothing) {
  for (const auto& groups : std::vector<std::vector<std::vector<int32_t>>>{{}, {{3, 7}, {4}}}) {
    TapeWriter writer = value_of(
        TapeWriter::create(path("run.tape"), small_spec(), {.layer_groups = groups, .overwrite = true}));
    expect_ok(writer.append(rows(3, 1), {.id = "kept"}));
    BrokenSource broken;
    expect_error(writer.append(broken, {.id = "gone"}), ErrorCode::kTimeout, "the store is gone");
    const RouteSpec other = make_spec({.layers = {3, 4}, .top_k = 2, .num_experts = 8});
    expect_error(writer.append(tell(other, {.num_rows = 1}, 1)), ErrorCode::kSpecMismatch,
                 "routes: expected routes of spec");
    RouteSpecFields repeating = small_spec().fields();
    repeating.distinct = false;
    expect_error(writer.append(tell(make_spec(repeating), {.num_rows = 1}, 1)), ErrorCode::kSpecMismatch,
                 "may repeat");
    expect_error(writer.append(rows(1), {.id = "\xc3"}), ErrorCode::kInvalidArgument,
                 "sequence id: expected UTF-8");
    expect_error(writer.append(rows(1), {.meta = "\xc3"}), ErrorCode::kInvalidArgument, "sequence meta");
    RoutesSource source(rows(4));
    const std::vector<int32_t> tokens = {1, 2, 3};
    expect_error(writer.append(source, {}, tokens), ErrorCode::kWrongShape,
                 "tokens: expected one for each of 4 rows");
    for (const std::vector<VersionRun>& versions : std::vector<std::vector<VersionRun>>{
             {{2, 5, 1}}, {{-1, 2, 1}}, {{0, 2, 1}, {1, 3, 2}}, {{3, 2, 1}}}) {
      expect_error(writer.append(source, {}, {}, versions), ErrorCode::kOutOfRange,
                   "versions: expected ascending");
    }
    expect_error(writer.append(source, {}, {}, std::vector<VersionRun>{{0, 1, 0xFFFFFF}}),
                 ErrorCode::kInvalidArgument, "version: expected 0 to 16777214");
    EXPECT_EQ(writer.num_sequences(), 1);
    EXPECT_EQ(writer.num_rows(), 3);
    expect_ok(writer.append(source, {.id = "too"}, std::vector<int32_t>{1, 2, 3, 4},
                            std::vector<VersionRun>{{1, 2, 5}, {2, 4, 5}}));
    expect_ok(writer.finish());
    const Tape tape = value_of(Tape::open(path("run.tape")));
    EXPECT_THAT(tape.verify(), IsEmpty());
    EXPECT_EQ(value_of(tape.read(0)), rows(3, 1));
    const Routes second = value_of(tape.read(1));
    EXPECT_THAT(second.versions(), ElementsAre(VersionRun{1, 4, 5}));
    EXPECT_THAT(second.tokens(), ElementsAre(1, 2, 3, 4));
    EXPECT_TRUE(std::ranges::equal(second.ids(), rows(4).ids()));
  }
}

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// Streams, spools and what waits in memory: 36 MB of ids in three groups, and 12 MB of tokens.
TEST_F(TapeWriting, MuchIsWrittenWithLittleMemory) {
  constexpr int kNumSequences = 100;
  const RouteSpec spec = make_spec({.layers = {0, 1, 2, 3}, .top_k = 4, .num_experts = 64});
  const TapeOptions options = {.codec = Codec::kBitpack, .layer_groups = {{0, 1}, {2}, {3}}};
  const Routes routes =
      tell(spec, {.num_rows = 30'000, .missing = true, .versions = true, .tokens = true}, 8);
  const int code = in_child([&] {
    auto writer = TapeWriter::create(path("run.tape"), spec, options);
    [[maybe_unused]] const int64_t before = peak_memory();
    for (int i = 0; i < kNumSequences; ++i) {
      if (!writer || !writer->append(routes, {.id = std::to_string(i)})) return 1;
    }
    if (!writer->finish()) return 2;
#ifndef MOETAPE_ADDRESS_SANITIZER  // which keeps what is freed
    if (peak_memory() - before > (int64_t{24} << 20)) return 3;
#endif
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(names(), ElementsAre("run.tape"));
  const Tape tape = value_of(Tape::open(path("run.tape")));
  for (int i = 0; i < kNumSequences; i += 9) EXPECT_EQ(value_of(tape.read(i)), routes);
  EXPECT_THAT(tape.verify(), IsEmpty());
}

using TapeShards = InFolder;

TEST_F(TapeShards, WhatDoesNotFitOneFileGoesToSeveral) {
  std::vector<Routes> routes;
  for (uint64_t i = 0; i < 20; ++i) routes.push_back(rows(1000 + static_cast<int64_t>(i), i));
  constexpr int64_t kMost = 20'000;
  write_tape(path("run.tape"), routes, {.max_file_bytes = kMost});
  const std::vector<std::string> found = names();
  EXPECT_GT(found.size(), 8u);
  EXPECT_THAT(found[0], testing::MatchesRegex("run-00001-of-000[0-9][0-9]-[0-9a-f]*\\.tape"));
  EXPECT_EQ(found.back(), "run.tape");

  const Tape tape = value_of(Tape::open(path("run.tape")));
  EXPECT_EQ(tape.name(), path("run.tape"));
  EXPECT_EQ(tape.num_sequences(), 20);
  EXPECT_EQ(tape.files().size(), found.size() - 1);
  for (const TapeFile& file : tape.files()) EXPECT_LE(file.num_bytes, kMost);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(value_of(tape.read(i)), routes[static_cast<size_t>(i)]) << i;
  EXPECT_THAT(tape.verify(), IsEmpty());
  expect_error(tape.read(20), ErrorCode::kOutOfRange, "expected one of [0, 20)");
  const Tape shard = value_of(Tape::open(path(found[1])));
  EXPECT_EQ(value_of(shard.read(0)), routes[static_cast<size_t>(tape.files()[0].num_sequences)]);

  fs::create_symlink(folder_ / "run.tape", folder_ / "link");
  EXPECT_EQ(value_of(Tape::open(path("link"))).num_sequences(), 20)
      << "shards stand beside the index, not the link";
}

TEST_F(TapeShards, ASequenceThatIsLargerThanAFileHasItsOwn) {
  write_tape(path("run"), {rows(10), rows(9000), rows(10)}, {.max_file_bytes = 10'000});
  const Tape tape = value_of(Tape::open(path("run")));
  ASSERT_EQ(tape.files().size(), 3u);
  EXPECT_EQ(tape.files()[1].num_rows, 9000);
  EXPECT_EQ(value_of(tape.read(1)), rows(9000));
  EXPECT_EQ(names().size(), 4u);
}

// More than a process may have open.
TEST_F(TapeShards, MoreThanAProcessMayHaveOpenAreWrittenAndRead) {
  constexpr int kNumShards = 100;
  const int code = in_child([&] {
    const rlimit limit{80, 80};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    auto writer = TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = 1});
    if (!writer) return 2;
    for (int i = 0; i < kNumShards; ++i) {
      if (!writer->append(rows(2, static_cast<uint64_t>(i)))) return 3;
    }
    if (!writer->finish()) return 4;
    const auto tape = Tape::open(path("run.tape"));
    if (!tape || std::ssize(tape->files()) != kNumShards) return 5;
    for (int i = 0; i < kNumShards; ++i) {
      const auto read = tape->read(i);
      if (!read || *read != rows(2, static_cast<uint64_t>(i))) return 6;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  const Tape tape = value_of(Tape::open(path("run.tape")));
  fs::resize_file(tape.files()[70].path, 100);
  expect_error(tape.read(70), ErrorCode::kCorruptData, "as when it was opened, got 100");
  EXPECT_TRUE(tape.read(69));
}

TEST_F(TapeShards, WhatFitsOneFileIsOneFile) {
  write_tape(path("run.tape"), {rows(10), rows(20)}, {.max_file_bytes = 100'000});
  EXPECT_THAT(names(), ElementsAre("run.tape"));
}

TEST_F(TapeShards, AnUnfinishedTapeLeavesNothing) {
  {
    TapeWriter writer =
        value_of(TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = 5000}));
    for (int i = 0; i < 5; ++i) expect_ok(writer.append(rows(1000)));
    EXPECT_EQ(writer.num_sequences(), 5);
    EXPECT_EQ(writer.num_rows(), 5000);
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TapeShards, AnIndexIsNotBuriedUnderAnotherTape) {
  TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec(), {.overwrite = true}));
  write_tape(path("run.tape"), {rows(900), rows(900)}, {.max_file_bytes = 5000});
  expect_error(TapeWriter::create(path("run.tape"), small_spec(), {.overwrite = true}), ErrorCode::kConflict,
               "run.tape: expected no tape of several files there");
  expect_error(writer.finish(), ErrorCode::kConflict, "run.tape: expected no tape of several files there");
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 1800);
  fs::remove(path("run.tape"));
  write_tape(path("run.tape"), {rows(2)});
}

TEST_F(TapeShards, TheLoserOfTwoWritersLeavesNoShards) {
  {
    TapeWriter writer =
        value_of(TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = 5000}));
    for (uint64_t i = 0; i < 3; ++i) expect_ok(writer.append(rows(900, i)));
    write_tape(path("run.tape"), {rows(2)});
    expect_error(writer.finish(), ErrorCode::kConflict, "run.tape: expected no file there");
    expect_error(writer.finish(), ErrorCode::kConflict, "run.tape: expected no file there");
    EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_rows(), 2);
  }
  EXPECT_THAT(names(), ElementsAre("run.tape"));
}

TEST_F(TapeShards, AFinishThatWasRefusedCanBeTriedAgain) {
  TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = 5000}));
  for (uint64_t i = 0; i < 2; ++i) expect_ok(writer.append(rows(900, i)));
  write_tape(path("run.tape"), {rows(2)});
  expect_error(writer.finish(), ErrorCode::kConflict, "run.tape");
  expect_ok(writer.append(rows(900, 2)));
  fs::remove(path("run.tape"));
  expect_ok(writer.finish());
  const Tape tape = value_of(Tape::open(path("run.tape")));
  EXPECT_EQ(tape.num_sequences(), 3);
  EXPECT_THAT(tape.verify(), IsEmpty());
  EXPECT_EQ(names().size(), 4u);
}

// As by a kill between two names: the index comes last, so that what is left is no tape under the path.
TEST_F(TapeShards, AProcessThatDiesAmidTheNamesLeavesNoIndex) {
  const int code = in_child([&] {
    auto writer = TapeWriter::create(path("run.tape"), small_spec(), {.max_file_bytes = 5000});
    if (!writer || !writer->append(rows(900, 1)) || !writer->append(rows(900, 2))) return 1;
    fs::create_directory(path("run.tape"));  // the index cannot be named
    if (writer->finish()) return 2;
    fs::remove(path("run.tape"));
    _exit(0);  // nothing is put away
  });
  ASSERT_EQ(code, 0);
  EXPECT_EQ(names().size(), 2u);
  expect_error(Tape::open(path("run.tape")), ErrorCode::kIo, "No such file");
  write_tape(path("run.tape"), {rows(900, 3), rows(900, 4)}, {.max_file_bytes = 5000});
  EXPECT_EQ(value_of(value_of(Tape::open(path("run.tape"))).read(0)), rows(900, 3));
}

TEST_F(TapeShards, TheLongestNamesHaveShardsToo) {
  const std::string name = std::string(250, 'n') + ".tape";
  write_tape(path(name), {rows(900, 1), rows(900, 2)}, {.max_file_bytes = 5000});
  EXPECT_EQ(value_of(value_of(Tape::open(path(name))).read(1)), rows(900, 2));
}

// case E08: a part that is not there is an error, never zeros.
TEST_F(TapeShards, MissingForeignAndDamagedShardsAreNamed) {
  write_tape(path("run.tape"), {rows(900, 1), rows(900, 2)}, {.max_file_bytes = 8000});
  const std::string first = names()[0];
  const std::string second = names()[1];
  const std::vector<std::byte> good = bytes_of_file(path(second));
  fs::rename(path(second), path("elsewhere"));
  expect_error(Tape::open(path("run.tape")), ErrorCode::kIo, second + ": cannot be opened: No such file");
  fs::copy(path(first), path(second));
  expect_error(Tape::open(path("run.tape")), ErrorCode::kCorruptData, second + ": expected");
  fs::resize_file(path(second), 0);
  expect_error(Tape::open(path("run.tape")), ErrorCode::kCorruptData,
               "expected a tape, got a file of 0 bytes");
  write_file(path(second), good);
  EXPECT_THAT(value_of(Tape::open(path("run.tape"))).verify(), IsEmpty());

  const std::vector<std::byte> index = bytes_of_file(path("run.tape"));
  for (size_t bytes = 0; bytes < index.size(); ++bytes) {
    EXPECT_FALSE(tape::parse_index("cut", std::span(index).first(bytes))) << bytes;
  }
  for (size_t bit = 0; bit < index.size() * 8; ++bit) {
    std::vector<std::byte> flipped = index;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_TRUE(!tape::is_index(flipped) || !tape::parse_index("flipped", flipped)) << bit;
  }
}

TEST_F(TapeShards, AnIndexNamesNoFilesElsewhere) {
  write_tape(path("run.tape"), {rows(900, 1), rows(900, 2)}, {.max_file_bytes = 8000});
  for (const std::string name : {"../run.tape", "/etc/passwd", "", ".hidden", "a\\b"}) {
    const std::string text = tape::format_index({.fingerprint = 1, .shards = {{.file = name}}});
    expect_error(tape::parse_index("run", std::as_bytes(std::span(text))), ErrorCode::kCorruptData,
                 "expected the name of a file beside it");
  }
}

TEST(TapeIndex, ChecksumsAreDigits) {
  for (const std::string checksum : {"", "0123", "0123456789abcde\\f", "0123456789ABCDEF"}) {
    const std::string text =
        tape::format_index({.fingerprint = 1, .shards = {{.file = "a.tape", .header_checksum = checksum}}});
    expect_error(tape::parse_index("run", std::as_bytes(std::span(text))), ErrorCode::kCorruptData,
                 "a.tape: expected 16 hexadecimal digits of header_xxh3");
  }
}

}  // namespace
}  // namespace moetape::inline v0
