/* Tasks of one kind each, as cheap as a process can be apart from what they are for. A last word is ignored.
 *
 * burn SECONDS        uses that much processor time
 * nap SECONDS         waits
 * hold SECONDS MIB    waits with that much memory in use
 * write ROUNDS KIB    writes so often so much to a file of its own, each time to the disk itself, and removes the file
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double processor_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static void nap(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&left, NULL);
}

static int write_out(long rounds, size_t size)
{
    char name[] = "written.XXXXXX";
    int file = mkstemp(name);
    char *data = malloc(size);
    if (file < 0 || data == NULL) {
        perror("throttle_task: a file to write");
        return 1;
    }
    memset(data, 'x', size);
    for (long round = 0; round < rounds; round++) {
        if (write(file, data, size) != (ssize_t)size || fsync(file) != 0) {
            perror("throttle_task: write");
            return 1;
        }
    }
    return unlink(name) == 0 ? 0 : 1;
}

int main(int count, char **words)
{
    const char *kind = count > 2 ? words[1] : "";
    double amount = count > 2 ? atof(words[2]) : 0.0;
    if (strcmp(kind, "burn") == 0) {
        while (processor_seconds() < amount)
            for (volatile int turn = 0; turn < 10000; turn++)
                ;
        return 0;
    }
    if (strcmp(kind, "nap") == 0) {
        nap(amount);
        return 0;
    }
    if (strcmp(kind, "hold") == 0 && count > 3) {
        size_t size = (size_t)atol(words[3]) << 20;
        char *memory = malloc(size);
        if (memory == NULL)
            return 1;
        memset(memory, 1, size);
        nap(amount);
        return memory[size / 2] == 1 ? 0 : 1;
    }
    if (strcmp(kind, "write") == 0 && count > 3)
        return write_out((long)amount, (size_t)atol(words[3]) << 10);
    fprintf(stderr, "throttle_task: burn, nap, hold or write\n");
    return 2;
}
