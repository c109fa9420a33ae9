/* The least that stands between two brokers: bytes from one to the other, and nothing else.
 *
 *     relay 0 HOST LINK_PORT PAUSE_US    takes every publication of a broker, acknowledges it, passes it on
 *     relay 1 HOST LINK_PORT PAUSE_US    takes what comes and gives it to the other broker
 *
 * HOST is the path of a Unix socket or a port on this machine. Nothing is routed, kept, acknowledged end to end or
 * kept from coming twice: what a federator is measured by, not what one could be (bench_floor.py).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, PACKET_BYTES_MAX = 1 << 20, UNIX_SEND_BYTES = 1 << 21, DIAL_US = 50000 };

static uint8_t buffer[READ_BYTES + PACKET_BYTES_MAX];
static uint8_t acknowledgements[READ_BYTES + PACKET_BYTES_MAX];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int dial(const char *where) {
    struct sockaddr_in tcp = local(where);
    struct sockaddr_un unix_socket = {.sun_family = AF_UNIX};
    int is_unix = where[0] == '/';
    snprintf(unix_socket.sun_path, sizeof unix_socket.sun_path, "%s", where);
    for (;; usleep(DIAL_US)) {
        int wire = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        int on = 1, size = UNIX_SEND_BYTES;
        if (is_unix)
            setsockopt(wire, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        else
            setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (!(is_unix ? connect(wire, (struct sockaddr *)&unix_socket, sizeof unix_socket)
                      : connect(wire, (struct sockaddr *)&tcp, sizeof tcp)))
            return wire;
        close(wire);
    }
}

static int answer(const char *port) {
    struct sockaddr_in address = local(port);
    int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 1))
        fail("listen");
    return accept(listening, NULL, NULL);
}

static void write_all(int wire, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t written = write(wire, bytes, size);
        if (written <= 0)
            fail("write");
        bytes += written;
        size -= written;
    }
}

static size_t read_some(int wire, uint8_t *into, size_t size) {
    ssize_t got = read(wire, into, size);
    if (got <= 0)
        fail("read");
    return got;
}

/* CONNECT with a Receive Maximum of 65534; relay 0 subscribes to '#' at QoS 1, No Local. Answers are not looked at. */
static int join(const char *where, int side) {
    uint8_t hello[] = {0x10, 18, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60, 3, 0x21, 0xff, 0xfe, 0, 2, 'r', '0' + side};
    uint8_t subscribe[] = {0x82, 7, 0, 1, 0, 0, 1, '#', 0x05};
    int wire = dial(where);
    write_all(wire, hello, sizeof hello);
    read_some(wire, buffer, 512);
    if (side == 0) {
        write_all(wire, subscribe, sizeof subscribe);
        read_some(wire, buffer, 6);
    }
    return wire;
}

/* The size of the packet at `at`, of which `size` bytes are there; 0 while it is not whole. Its body begins at *body. */
static size_t packet_size(const uint8_t *at, size_t size, size_t *body) {
    size_t length = 0;
    for (size_t i = 1; i < size && i < 5; i++) {
        length |= (size_t)(at[i] & 0x7f) << 7 * (i - 1);
        if (!(at[i] & 0x80)) {
            *body = i + 1;
            return size >= *body + length ? *body + length : 0;
        }
    }
    return 0;
}

/* Let more come before the next read: fewer reads, writes and wakings. */
static void gather(useconds_t pause_us) {
    if (pause_us)
        usleep(pause_us);
}

static void take(int host, int link, useconds_t pause_us) {
    size_t have = 0;
    for (;;) {
        size_t at = 0, size, body, acknowledged = 0;
        have += read_some(host, buffer + have, READ_BYTES);
        while ((size = packet_size(buffer + at, have - at, &body))) {
            const uint8_t *topic = buffer + at + body;
            const uint8_t *id = topic + 2 + (topic[0] << 8 | topic[1]);
            if ((buffer[at] & 0xf6) == 0x32) {
                memcpy(acknowledgements + acknowledged, (uint8_t[]){0x40, 2, id[0], id[1]}, 4);
                acknowledged += 4;
            }
            at += size;
        }
        write_all(link, buffer, at);
        write_all(host, acknowledgements, acknowledged);
        have -= at;
        memmove(buffer, buffer + at, have);
        gather(pause_us);
    }
}

static void give(int host, int link, useconds_t pause_us) {
    for (;;) {
        write_all(host, buffer, read_some(link, buffer, READ_BYTES));
        while (recv(host, acknowledgements, sizeof acknowledgements, MSG_DONTWAIT) == sizeof acknowledgements)
            ;
        gather(pause_us);
    }
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: relay 0|1 HOST LINK_PORT PAUSE_US\n");
        return 2;
    }
    int side = atoi(words[1]);
    int host = join(words[2], side);
    int link = side ? answer(words[3]) : dial(words[3]);
    (side ? give : take)(host, link, atoi(words[4]));
}
