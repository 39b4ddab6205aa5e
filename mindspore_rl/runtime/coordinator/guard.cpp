// Preloaded into the processes of a job on one host: what mpiexec and UCX leave open to others is closed.

#include <errno.h>
#include <linux/filter.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

// A rank is the last that needs this: what it starts gets the variable as the user has it.
__attribute__((constructor)) static void hide() {
    const char* preloaded = getenv("LD_PRELOAD");
    if (!preloaded || !getenv("PMI_RANK")) return;
    if (const char* users = strchr(preloaded, ':'))
        setenv("LD_PRELOAD", users + 1, 1);
    else
        unsetenv("LD_PRELOAD");
}

// Nobody has business at mpiexec's port, which is open to every network: its proxy is its child.
extern "C" int listen(int descriptor, int backlog) {
    if (strncmp(program_invocation_short_name, "mpiexec", 7) == 0) {
        sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
        sock_fprog program = {1, &nothing};
        setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    }
    return (int)syscall(SYS_listen, descriptor, backlog);
}

// UCX lets the user's group read and write its segments.
extern "C" int shmget(key_t key, size_t size, int flags) {
    return (int)syscall(SYS_shmget, key, size, flags & ~077);
}
