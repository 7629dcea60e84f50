#include "tools/doctor/libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command.h"

namespace weft::doctor {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);  // for what a library does when loaded
constexpr int kNewestTable = 12, kOldestTable = 5;

// What `work` returns in a child process, which a library may end or hang. `failure` says how.
std::string InChild(const std::function<std::string()>& work, std::string* failure) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    *failure = strerror(errno);
    return "";
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string answer = work();
    bool written = write(ends[1], answer.data(), answer.size()) >= 0;
    _exit(written ? 0 : 1);  // without the library's own clean-up
  }
  close(ends[1]);
  if (child < 0) {
    *failure = strerror(errno);
    close(ends[0]);
    return "";
  }
  std::string answer;
  if (!ReadPipe(ends[0], kPatience, &answer)) {
    *failure = absl::StrCat("still loading after ", absl::FormatDuration(kPatience),
                            ", or more than 1 MiB was told of it");
    kill(child, SIGKILL);
  }
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !failure->empty()) return answer;
  if (WIFSIGNALED(status)) {
    *failure = absl::StrCat("loading it ended the process: ", strsignal(WTERMSIG(status)));
  } else if (answer.empty()) {
    *failure = absl::StrCat("loading it ended the process with exit status ", WEXITSTATUS(status));
  }
  return answer;
}

std::string PathOf(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 ? map->l_name : "?";
}

// "path\nversion" or "\nerror".
std::string LoadLibrary(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::StrCat("\n", dlerror());
  std::string version;
  using GetVersion = int (*)(int*);
  if (auto get = reinterpret_cast<GetVersion>(dlsym(handle, "ncclGetVersion"))) {
    if (int code = 0; get(&code) == 0) {  // since 2.9 major * 10000 + minor * 100 + patch
      version = absl::StrFormat("%d.%d.%d", code / 10000, code % 10000 / 100, code % 100);
    }
  }
  return absl::StrCat(PathOf(handle), "\n", version);
}

// "path\nv12 v11" or "\nerror".
std::string LoadPlugin(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::StrCat("\n", dlerror());
  std::vector<std::string> tables;
  for (int version = kNewestTable; version >= kOldestTable; --version) {
    if (dlsym(handle, absl::StrCat("ncclNetPlugin_v", version).c_str()) != nullptr) {
      tables.push_back(absl::StrCat("v", version));
    }
  }
  return absl::StrCat(PathOf(handle), "\n", absl::StrJoin(tables, " "));
}

// The two lines of an answer; the first is empty and `failure` not when it did not load.
std::pair<std::string, std::string> Try(std::string (*load)(const std::string&),
                                        const std::string& name, std::string* failure) {
  std::pair<std::string, std::string> lines =
      absl::StrSplit(InChild([&] { return load(name); }, failure), absl::MaxSplits('\n', 1));
  if (!failure->empty()) lines.first.clear();
  if (lines.first.empty() && failure->empty()) *failure = lines.second;
  return lines;
}

}  // namespace

std::vector<LibraryFound> FindLibraries() {
  std::vector<LibraryFound> libraries;
  for (const char* name : {"libibverbs.so.1", "libnccl.so.2"}) {
    LibraryFound library;
    library.name = name;
    auto [path, version] = Try(LoadLibrary, library.name, &library.error);
    library.path = path;
    if (!path.empty()) library.version = version;
    libraries.push_back(std::move(library));
  }
  return libraries;
}

std::vector<std::string> NetPluginNames(const std::string& wish) {
  if (wish.empty()) return {"libnccl-net.so"};
  if (absl::EqualsIgnoreCase(wish, "none")) return {};
  std::vector<std::string> names;
  for (absl::string_view name : absl::StrSplit(wish, ',', absl::SkipWhitespace())) {
    name = absl::StripAsciiWhitespace(name);
    names.emplace_back(name);
    const bool library = absl::StartsWith(name, "lib") && absl::EndsWith(name, ".so");
    if (!library && !absl::StrContains(name, '/')) {
      names.push_back(absl::StrCat("libnccl-net-", name, ".so"));
    }
  }
  return names;
}

std::vector<NetPlugin> FindNetPlugins(const std::string& wish) {
  std::vector<NetPlugin> plugins;
  for (const std::string& name : NetPluginNames(wish)) {
    NetPlugin plugin;
    plugin.name = name;
    auto [path, tables] = Try(LoadPlugin, name, &plugin.error);
    plugin.path = path;
    if (!path.empty()) plugin.tables = absl::StrSplit(tables, ' ', absl::SkipEmpty());
    plugins.push_back(std::move(plugin));
  }
  return plugins;
}

}  // namespace weft::doctor
