// Passes IP packets between hosts (network namespaces) after a delay, in place of `tc netem`.
//
//   network_relay DELAY_MS LOSS NAMESPACE...
//
// Makes a TUN device `eth0` in each namespace and prints "ready". A packet for 10.77.0.<i> goes to the
// i-th namespace, DELAY_MS after it was sent, or is lost with probability LOSS. Needs root; SIGTERM ends it and removes the devices.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

struct Packet {
  Clock::time_point due;
  int target;
  std::vector<char> data;
};

static void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

static int open_tun(const std::string& name) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) < 0) fail(name.c_str());
  close(space);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request = {};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "eth0");
  if (tun < 0 || ioctl(tun, TUNSETIFF, &request) < 0) fail("/dev/net/tun");
  return tun;
}

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: network_relay DELAY_MS LOSS NAMESPACE NAMESPACE...\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1000);  // ns
  const auto delay = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(std::atof(argv[1])));
  const double loss = std::atof(argv[2]);
  std::minstd_rand generator(1);
  std::uniform_real_distribution<double> uniform;
  std::vector<pollfd> ends;
  for (int i = 3; i < argc; ++i) ends.push_back({open_tun(argv[i]), POLLIN, 0});
  std::puts("ready");
  std::fflush(stdout);

  std::deque<Packet> waiting;  // the delay is the same for all, so the first is due first
  char buffer[1 << 16];
  while (true) {
    timespec left = {3600, 0};
    if (!waiting.empty()) {
      const auto ns = std::chrono::nanoseconds(waiting.front().due - Clock::now()).count();
      left = ns > 0 ? timespec{ns / 1000000000, ns % 1000000000} : timespec{0, 0};
    }
    if (ppoll(ends.data(), ends.size(), &left, nullptr) < 0) fail("ppoll");
    for (auto& end : ends) {
      if (!(end.revents & POLLIN)) continue;
      for (ssize_t size; (size = read(end.fd, buffer, sizeof buffer)) > 0;) {
        const int target = static_cast<unsigned char>(buffer[19]) - 1;  // of 10.77.0.<target + 1>
        if (size < 20 || (buffer[0] & 0xf0) != 0x40 || target < 0 ||
            target >= static_cast<int>(ends.size()))
          continue;  // IPv6 neighbour discovery and the like
        if (uniform(generator) < loss) continue;
        waiting.push_back({Clock::now() + delay, target, {buffer, buffer + size}});
      }
    }
    for (; !waiting.empty() && waiting.front().due <= Clock::now(); waiting.pop_front()) {
      const Packet& packet = waiting.front();
      if (write(ends[packet.target].fd, packet.data.data(), packet.data.size()) < 0) continue;
    }
  }
}
