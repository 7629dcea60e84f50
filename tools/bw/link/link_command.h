// weft-bw link: one transport between processes, without collectives. The words of the command line
// are those behind "weft-bw"; the result is the exit status.
#ifndef WEFT_TOOLS_BW_LINK_LINK_COMMAND_H_
#define WEFT_TOOLS_BW_LINK_LINK_COMMAND_H_

namespace weft::link_bw {

// `argv` as main() got it; argv[1] is "link".
int RunLinkCommand(int argc, char** argv);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_LINK_COMMAND_H_
