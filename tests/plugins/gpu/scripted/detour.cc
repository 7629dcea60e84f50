#include "tests/plugins/gpu/scripted/detour.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace weft::scripted {
namespace {

using Code = std::array<unsigned char, 13>;

// movabs r11, target; jmp r11
Code JumpTo(const void* target) {
  Code code = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
  memcpy(&code[2], &target, sizeof(target));
  return code;
}

absl::Status Write(void* at, const void* bytes, size_t size) {
  auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t first = reinterpret_cast<uintptr_t>(at) & ~(page - 1);
  size_t length = reinterpret_cast<uintptr_t>(at) + size - first;
  auto* pages = reinterpret_cast<void*>(first);
  if (mprotect(pages, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make code writable");
  }
  memcpy(at, bytes, size);
  if (mprotect(pages, length, PROT_READ | PROT_EXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make code executable again");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Detours> Detours::Of(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return absl::InternalError(dlerror());
  int file = open(map->l_name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", map->l_name));
  absl::Cleanup close_file = [&] { close(file); };
  struct stat status {};
  if (fstat(file, &status) != 0) return absl::ErrnoToStatus(errno, map->l_name);
  auto size = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, map->l_name);
  absl::Cleanup unmap = [&] { munmap(mapped, size); };

  const char* bytes = static_cast<const char*>(mapped);
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + header->e_shoff);
  Detours detours;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = bytes + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      if (symbols[s].st_value == 0) continue;
      auto* address = reinterpret_cast<void*>(map->l_addr + symbols[s].st_value);
      int type = ELF64_ST_TYPE(symbols[s].st_info);
      if (type == STT_FUNC && symbols[s].st_size >= sizeof(Code)) {
        detours.functions_.emplace(names + symbols[s].st_name, address);
      } else if (type == STT_OBJECT) {
        detours.objects_.emplace(names + symbols[s].st_name, address);
      }
    }
  }
  if (detours.functions_.empty()) {
    return absl::NotFoundError(absl::StrCat(map->l_name, " has no symbol table: it was stripped"));
  }
  return detours;
}

void* Detours::Find(const std::string& name) const {
  for (const auto* symbols : {&functions_, &objects_}) {
    if (auto found = symbols->find(name); found != symbols->end()) return found->second;
  }
  return nullptr;
}

absl::Status Detours::Replace(void* function, const void* by) {
  Code code = JumpTo(by);
  return Write(function, code.data(), code.size());
}

absl::Status Detours::ReplaceByNamed(void* function, const char* name, int (*by)(const char*)) {
  // One page of little functions after another, each: movabs rdi, name; jump.
  static char* next = nullptr;
  static char* end = nullptr;
  constexpr size_t kSize = 10 + sizeof(Code), kPage = 4096;
  if (end - next < static_cast<ptrdiff_t>(kSize)) {
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return absl::ErrnoToStatus(errno, "no page for code");
    next = static_cast<char*>(page);
    end = next + kPage;
  }
  std::array<unsigned char, kSize> code = {0x48, 0xbf};
  memcpy(&code[2], &name, sizeof(name));
  Code jump = JumpTo(reinterpret_cast<const void*>(by));
  memcpy(&code[10], jump.data(), jump.size());
  if (auto status = Write(next, code.data(), code.size()); !status.ok()) return status;
  const void* made = next;
  next += kSize;
  return Replace(function, made);
}

}  // namespace weft::scripted
