/* Runs one command and prints its wall-clock seconds and its peak memory as a line of JSON.
 *
 * A process inherits the peak of whoever started it, so a tool of a few megabytes cannot be measured from Python;
 * this program is smaller than anything it runs.
 */
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PROGRAM [ARGUMENT...]\n", argv[0]);
        return 2;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    struct timespec started, ended;
    clock_gettime(CLOCK_MONOTONIC, &started);
    pid_t pid;
    int error = posix_spawn(&pid, argv[1], &actions, NULL, argv + 1, environ);
    if (error) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(error));
        return 1;
    }
    int status;
    struct rusage usage;
    wait4(pid, &status, 0, &usage);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = ended.tv_sec - started.tv_sec + (ended.tv_nsec - started.tv_nsec) / 1e9;
    printf("{\"seconds\": %.6f, \"peak_mib\": %.3f}\n", seconds, usage.ru_maxrss / 1024.0);
    return status != 0;
}
