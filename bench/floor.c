/* The floor: start N copies of a program with posix_spawn, a fixed number in flight, and wait for each of them.
 *
 * No graph, no log, no output: nothing that runs the same programs on the same machine can be much faster, so the
 * other contestants are measured as shares of this one. The children get the whole environment, as everywhere else.
 */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s TASKS IN_FLIGHT PROGRAM [ARGUMENT...]\n", argv[0]);
        return 2;
    }
    long left = atol(argv[1]);
    long in_flight = atol(argv[2]);
    long running = 0;
    int failed = 0;

    while (left > 0 || running > 0) {
        while (left > 0 && running < in_flight) {
            pid_t pid;
            int error = posix_spawn(&pid, argv[3], NULL, NULL, argv + 3, environ);
            if (error) {
                fprintf(stderr, "%s: %s\n", argv[3], strerror(error));
                return 1;
            }
            left--;
            running++;
        }
        int status;
        if (waitpid(-1, &status, 0) < 0) {
            if (errno == EINTR)
                continue;
            perror("waitpid");
            return 1;
        }
        running--;
        failed |= status != 0;
    }
    return failed;
}
