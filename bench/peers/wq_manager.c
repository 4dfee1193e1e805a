/* A Work Queue manager of N equal commands, with one worker of its own on loopback.
 *
 * The clock starts when the worker has connected and stops when the last result is back, so neither side's start-up
 * counts. Work Queue listens on every interface; the password file keeps strangers away from the few seconds of a run.
 * Prints one line of JSON.
 */
#include <cctools/work_queue.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static pid_t start_worker(int port, char *cores, char *password_file)
{
    char port_text[16];
    snprintf(port_text, sizeof port_text, "%d", port);
    char *arguments[] = {"work_queue_worker", "--single-shot", "--timeout", "60", "--cores", cores, "--workdir", ".",
                         "--password", password_file, "127.0.0.1", port_text, NULL};
    pid_t pid;
    int error = posix_spawnp(&pid, arguments[0], NULL, NULL, arguments, environ);
    if (error) {
        fprintf(stderr, "work_queue_worker: %s\n", strerror(error));
        exit(1);
    }
    return pid;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s TASKS CORES COMMAND PASSWORD_FILE\n", argv[0]);
        return 2;
    }
    int tasks = atoi(argv[1]);
    struct work_queue *queue = work_queue_create(-1);
    if (!queue || !work_queue_specify_password_file(queue, argv[4])) {
        fprintf(stderr, "could not create a queue\n");
        return 1;
    }
    pid_t worker = start_worker(work_queue_port(queue), argv[2], argv[4]);
    struct work_queue_stats stats;
    do {
        work_queue_wait(queue, 1);
        work_queue_get_stats(queue, &stats);
    } while (stats.workers_connected == 0 && waitpid(worker, NULL, WNOHANG) == 0);

    double started = now();
    for (int at = 0; at < tasks; at++) {
        struct work_queue_task *task = work_queue_task_create(argv[3]);
        work_queue_task_specify_cores(task, 1);
        work_queue_submit(queue, task);
    }
    int good = 0;
    while (!work_queue_empty(queue)) {
        struct work_queue_task *task = work_queue_wait(queue, 5);
        if (task) {
            good += task->return_status == 0 && task->result == WORK_QUEUE_RESULT_SUCCESS;
            work_queue_task_delete(task);
        }
    }
    double seconds = now() - started;
    work_queue_delete(queue);
    kill(worker, SIGTERM);
    waitpid(worker, NULL, 0);
    printf("{\"seconds\": %.6f}\n", seconds);
    return good == tasks ? 0 : 1;
}
