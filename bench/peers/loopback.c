/* Runs a command in a network of its own that has nothing but loopback.
 *
 * Several peers listen on every interface, some of them without asking who calls. In here nobody can call.
 * Needs root or user namespaces; says so if it has neither.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int raise_loopback(void)
{
    struct ifreq request = {.ifr_flags = IFF_UP};
    strcpy(request.ifr_name, "lo");
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return any < 0 ? -1 : ioctl(any, SIOCSIFFLAGS, &request);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PROGRAM [ARGUMENT...]\n", argv[0]);
        return 2;
    }
    int flags = geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET;
    if (unshare(flags) < 0 || raise_loopback() < 0) {
        fprintf(stderr, "it listens on all interfaces and no private network can be made: %s\n", strerror(errno));
        return 1;
    }
    execv(argv[1], argv + 1);
    fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
    return 1;
}
