/* The plainest receiver in C, to compare weir-bench's floor with, and a sender for both.
 *
 *   floor recv unixgram PATH     recv(), count newlines, throw away
 *   floor mmsg unixgram PATH     the same with recvmmsg() and 64 slots
 *   floor null unixgram PATH     recvmmsg() with MSG_TRUNC into no room, without ever sleeping: counts only, for senders
 *   floor recv udp PORT          the same on 127.0.0.1
 *   floor send unixgram PATH PACKETS BYTES
 *   floor send udp PORT PACKETS BYTES
 *
 * Receivers end after half a second of silence once something came, and print packets, messages, CPU seconds and
 * nanoseconds of CPU per message. The sender's messages are about 150 bytes long.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 65536, SLOTS = 64 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static size_t lines(const char *bytes, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += bytes[i] == '\n';
    return count + (length > 0 && bytes[length - 1] != '\n');
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int open_socket(const char *kind, const char *where, int listening) {
    union {
        struct sockaddr any;
        struct sockaddr_un unix_path;
        struct sockaddr_in inet;
    } address;
    socklen_t length;
    int fd;
    memset(&address, 0, sizeof address);
    if (strcmp(kind, "udp") == 0) {
        fd = socket(AF_INET, SOCK_DGRAM, 0);
        address.inet.sin_family = AF_INET;
        address.inet.sin_port = htons(atoi(where));
        address.inet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        length = sizeof address.inet;
    } else {
        fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        address.unix_path.sun_family = AF_UNIX;
        strncpy(address.unix_path.sun_path, where, sizeof address.unix_path.sun_path - 1);
        length = sizeof address.unix_path;
        if (listening)
            unlink(where);
    }
    if (fd < 0)
        die("socket");
    if (listening) {
        int bytes = 4 << 20;
        if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        if (bind(fd, &address.any, length) < 0)
            die("bind");
    } else if (connect(fd, &address.any, length) < 0) {
        die("connect");
    }
    return fd;
}

static void set_timeout(int fd) {
    struct timeval half = {0, 500000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
}

static void receive(int fd, int many) {
    static char storage[SLOTS][SLOT];
    static struct iovec vectors[SLOTS];
    static struct mmsghdr headers[SLOTS];
    size_t packets = 0, messages = 0, calls = 0;
    for (int i = 0; i < SLOTS; i++) {
        vectors[i].iov_base = storage[i];
        vectors[i].iov_len = SLOT;
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    /* Wait for the first packet without a limit, then give up after half a second of silence. */
    struct pollfd waiting = {fd, POLLIN, 0};
    puts("listening");
    fflush(stdout);
    poll(&waiting, 1, -1);
    set_timeout(fd);
    double before = cpu_seconds();
    for (;;) {
        if (many) {
            int filled = recvmmsg(fd, headers, SLOTS, MSG_WAITFORONE, NULL);
            if (filled < 0)
                break;
            for (int i = 0; i < filled; i++)
                messages += lines(storage[i], headers[i].msg_len);
            packets += filled;
        } else {
            ssize_t length = recv(fd, storage[0], SLOT, 0);
            if (length < 0)
                break;
            messages += lines(storage[0], length);
            packets++;
        }
        calls++;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        die("receive");
    double used = cpu_seconds() - before;
    printf("{\"packets\":%zu,\"messages\":%zu,\"syscalls\":%zu,\"cpu_s\":%.6f,\"cpu_ns_per_message\":%.3f}\n", packets,
           messages, calls, used, messages ? used * 1e9 / messages : 0.0);
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Prints the rate from the first packet to the last, too: what the sender was able to do. */
static void count(int fd) {
    static struct mmsghdr headers[SLOTS];
    size_t packets = 0, bytes = 0;
    double first = 0, last = 0;
    puts("listening");
    fflush(stdout);
    for (;;) {
        int filled = recvmmsg(fd, headers, SLOTS, MSG_TRUNC | MSG_DONTWAIT, NULL);
        if (filled < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                die("receive");
            if (packets > 0 && now_seconds() - last > 0.5)
                break;
            for (int i = 0; i < 64; i++)
                pause_briefly();
            continue;
        }
        last = now_seconds();
        if (packets == 0)
            first = last;
        packets += filled;
        for (int i = 0; i < filled; i++)
            bytes += headers[i].msg_len;
    }
    printf("{\"packets\":%zu,\"bytes\":%zu,\"elapsed_s\":%.6f,\"packets_per_s\":%.0f,\"bytes_per_s\":%.0f}\n", packets, bytes,
           last - first, packets / (last - first), bytes / (last - first));
}

static void send_all(int fd, long packets, size_t bytes) {
    static char storage[SLOTS][SLOT];
    static struct iovec vectors[SLOTS];
    static struct mmsghdr headers[SLOTS];
    long sent = 0;
    unsigned serial = 0;
    if (bytes > SLOT)
        bytes = SLOT;
    for (int i = 0; i < SLOTS; i++) {
        size_t at = 0;
        for (;;) {
            char message[256];
            int length = snprintf(message, sizeof message,
                                  "%sservice.component.metric_%06u:%u|c|#env:production,service:checkout,version:1.2.3,"
                                  "host:host-%04u,pod:pod-%06u,region:eu-west-1,zone:b",
                                  at ? "\n" : "", serial % 1000, serial, serial % 97, serial % 1009);
            if (at > 0 && at + length > bytes)
                break;
            memcpy(storage[i] + at, message, length);
            at += length;
            serial++;
        }
        vectors[i].iov_base = storage[i];
        vectors[i].iov_len = at;
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    while (sent < packets) {
        long left = packets - sent;
        int done = sendmmsg(fd, headers, left < SLOTS ? left : SLOTS, 0);
        if (done < 0)
            die("sendmmsg");
        sent += done;
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "recv") == 0) {
        receive(open_socket(argv[2], argv[3], 1), 0);
    } else if (argc == 4 && strcmp(argv[1], "mmsg") == 0) {
        receive(open_socket(argv[2], argv[3], 1), 1);
    } else if (argc == 4 && strcmp(argv[1], "null") == 0) {
        count(open_socket(argv[2], argv[3], 1));
    } else if (argc == 6 && strcmp(argv[1], "send") == 0) {
        send_all(open_socket(argv[2], argv[3], 0), atol(argv[4]), atol(argv[5]));
    } else {
        fprintf(stderr, "usage: see the head of floor.c\n");
        return 2;
    }
    return 0;
}
