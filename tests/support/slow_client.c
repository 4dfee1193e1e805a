/* A task that calls the slow server: sends "TAG SIZE" to a port of this machine and waits for the answer. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count < 4) {
        fprintf(stderr, "usage: slow_client PORT TAG SIZE\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("slow_client: connect");
        return 1;
    }
    char line[200];
    int length = snprintf(line, sizeof line, "%s %s\n", words[2], words[3]);
    if (length < 0 || length >= (int)sizeof line || write(connection, line, (size_t)length) != length) {
        fprintf(stderr, "slow_client: the request cannot be sent\n");
        return 1;
    }
    ssize_t got = read(connection, line, sizeof line);
    return got >= 2 && memcmp(line, "ok", 2) == 0 ? 0 : 1;
}
