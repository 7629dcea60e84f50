// The load that other processes put on this machine.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_OTHER_PROCESSES_H_
#define WEFT_TRAINER_KERNEL_CHOICE_OTHER_PROCESSES_H_

namespace weft::train {

// CPU time that processes other than this one use from the construction on. Const use is
// thread-safe.
class OtherProcesses {
 public:
  OtherProcesses() : before_(Read()) {}
  // On average since the construction, in cores; 0 where /proc/stat cannot be read.
  double Cores() const;

 private:
  struct Times {
    double all = 0, own = 0;  // CPU seconds: of all processes since the boot, and of this one
    double wall = 0;          // seconds
  };
  static Times Read();
  const Times before_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_OTHER_PROCESSES_H_
