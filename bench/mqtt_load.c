// Load for bench_gateway.py: MQTT 3.1.1 over plain TCP, cheap enough that the broker and the proxy are what is measured.
//
//   mqtt_load flood HOST PORT SECONDS QOS PAYLOAD_BYTES WINDOW
//       One publisher, one subscriber. At most WINDOW messages are on their way.
//   mqtt_load echo HOST PORT SECONDS QOS PAYLOAD_BYTES CONNECTIONS
//       Each connection publishes to a topic of its own, and again when the message has come back.
//
// The first fifth of the time is not counted. Prints JSON: messages, seconds, all messages, and for `echo` the round trip in µs.
// Compile: cc -O2 -o mqtt_load mqtt_load.c

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TOPIC_BYTES 10
#define BUFFER_BYTES (1 << 20)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "mqtt_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int dial(const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void write_all(int fd, const unsigned char *data, size_t size) {
    while (size) {
        ssize_t done = write(fd, data, size);
        if (done <= 0) fail("write");
        data += done, size -= done;
    }
}

static void read_exactly(int fd, unsigned char *data, size_t size) {
    while (size) {
        ssize_t done = read(fd, data, size);
        if (done <= 0) fail("read");
        data += done, size -= done;
    }
}

static void greet(int fd, const char *kind, int k) {
    char id[32];
    int length = snprintf(id, sizeof id, "%s%d-%d", kind, k, (int)getpid());
    unsigned char packet[64] = {0x10, 12 + length, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, length};
    memcpy(packet + 14, id, length);
    write_all(fd, packet, 14 + length);
    read_exactly(fd, packet, 4);
    if (packet[0] != 0x20 || packet[3]) fail("CONNECT was refused");
}

static void subscribe(int fd, const char *topic, int qos) {
    unsigned char packet[32] = {0x82, 5 + TOPIC_BYTES, 0, 1, 0, TOPIC_BYTES};
    memcpy(packet + 6, topic, TOPIC_BYTES);
    packet[6 + TOPIC_BYTES] = qos;
    write_all(fd, packet, 7 + TOPIC_BYTES);
    read_exactly(fd, packet, 5);
    if (packet[0] != 0x90 || packet[4] > 2) fail("SUBSCRIBE was refused");
}

// A publication; its packet identifier, if it has one, stands at *at.
static size_t publication(unsigned char *to, const char *topic, int qos, int payload, size_t *at) {
    size_t length = 2 + TOPIC_BYTES + (qos ? 2 : 0) + payload, i = 0;
    to[i++] = 0x30 | qos << 1;
    for (size_t rest = length;;) {
        to[i++] = (rest & 127) | (rest > 127 ? 128 : 0);
        if (!(rest >>= 7)) break;
    }
    to[i++] = 0, to[i++] = TOPIC_BYTES;
    memcpy(to + i, topic, TOPIC_BYTES);
    i += TOPIC_BYTES;
    *at = i;
    if (qos) i += 2;
    memset(to + i, 'x', payload);
    return i + payload;
}

static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static void flood(const char *host, int port, double seconds, int qos, int payload, long window) {
    static unsigned char out[BUFFER_BYTES], in[BUFFER_BYTES], acks[BUFFER_BYTES], drop[65536];
    char topic[TOPIC_BYTES + 1] = "bench/pair";
    int sub = dial(host, port), pub = dial(host, port);
    greet(sub, "s", 0), greet(pub, "p", 0);
    subscribe(sub, topic, qos);
    size_t at, size = publication(out, topic, qos, payload, &at);
    long batch = 16384 / size + 1;
    for (long k = 1; k < batch; k++) memcpy(out + k * size, out, size);
    nonblocking(sub), nonblocking(pub);
    int poll = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = sub}, ready[4];
    epoll_ctl(poll, EPOLL_CTL_ADD, sub, &e);
    e.data.fd = pub;
    epoll_ctl(poll, EPOLL_CTL_ADD, pub, &e);
    long sent = 0, got = 0, counted_from = 0;
    size_t have = 0, left = 0, from = 0, acks_have = 0;
    unsigned id = 0;
    double start = now(), begin = 0, end = start + seconds;
    for (;;) {
        double t = now();
        if (t > end) break;
        if (!begin && t > start + seconds / 5) begin = t, counted_from = got;
        while (left || sent - got + batch <= window) {
            if (!left) {
                if (qos)
                    for (long k = 0; k < batch; k++) {
                        id = id % 65535 + 1;
                        out[k * size + at] = id >> 8, out[k * size + at + 1] = id;
                    }
                left = batch * size, from = 0, sent += batch;
            }
            ssize_t done = write(pub, out + from, left);
            if (done < 0 && errno == EAGAIN) break;
            if (done <= 0) fail("publish");
            from += done, left -= done;
        }
        e.data.fd = pub, e.events = EPOLLIN | (left ? EPOLLOUT : 0);
        epoll_ctl(poll, EPOLL_CTL_MOD, pub, &e);
        int count = epoll_wait(poll, ready, 4, 100);
        for (int k = 0; k < count; k++) {
            if (ready[k].data.fd == pub) {
                if (ready[k].events & EPOLLIN && read(pub, drop, sizeof drop) == 0) fail("the publisher was closed");
                continue;
            }
            ssize_t done = read(sub, in + have, sizeof in - have);
            if (done == 0) fail("the subscriber was closed");
            if (done < 0) continue;
            have += done;
            size_t i = 0;
            for (; have - i >= size; i += size, got++)
                if (qos) {
                    unsigned char ack[4] = {0x40, 2, in[i + at], in[i + at + 1]};
                    memcpy(acks + acks_have, ack, 4), acks_have += 4;
                }
            memmove(in, in + i, have -= i);
            if (acks_have) {
                ssize_t written = write(sub, acks, acks_have);
                if (written > 0) memmove(acks, acks + written, acks_have -= written);
            }
        }
        if (!count && acks_have) {
            ssize_t written = write(sub, acks, acks_have);
            if (written > 0) memmove(acks, acks + written, acks_have -= written);
        }
    }
    printf("{\"messages\": %ld, \"seconds\": %.6f, \"all\": %ld}\n", got - counted_from, now() - begin, got);
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

struct one {
    int fd;
    double sent;
    size_t have, size, at;
    unsigned id;
    unsigned char *packet;
    unsigned char in[8192];
};

static void again(struct one *c, int qos) {
    if (qos) c->id = c->id % 65535 + 1, c->packet[c->at] = c->id >> 8, c->packet[c->at + 1] = c->id;
    c->sent = now();
    write_all(c->fd, c->packet, c->size);
}

static void echo(const char *host, int port, double seconds, int qos, int payload, int connections) {
    struct one *all = calloc(connections, sizeof *all);
    long room = 20000000, count = 0, total = 0;
    float *trips = malloc(room * sizeof *trips);
    int poll = epoll_create1(0);
    for (int k = 0; k < connections; k++) {
        struct one *c = all + k;
        char topic[TOPIC_BYTES + 1];
        snprintf(topic, sizeof topic, "echo/%05u", (unsigned)k % 100000);
        c->packet = malloc(payload + 64);
        c->fd = dial(host, port);
        greet(c->fd, "e", k);
        subscribe(c->fd, topic, qos);
        c->size = publication(c->packet, topic, qos, payload, &c->at);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &e);
    }
    double start = now(), begin = start + seconds / 5, end = start + seconds;
    for (int k = 0; k < connections; k++) again(all + k, qos);
    struct epoll_event ready[256];
    for (double t = start; t < end;) {
        int n = epoll_wait(poll, ready, 256, 100);
        t = now();
        for (int k = 0; k < n; k++) {
            struct one *c = ready[k].data.ptr;
            ssize_t done = read(c->fd, c->in + c->have, sizeof c->in - c->have);
            if (done <= 0) fail("a connection was closed");
            c->have += done;
            int is_back = 0;
            size_t i = 0;
            while (c->have - i >= 2) {
                // With QoS 1 a PUBACK of four bytes comes as well, in either order.
                size_t size = c->in[i] >> 4 == 4 ? 4 : c->size;
                if (c->have - i < size) break;
                if (c->in[i] >> 4 == 3) {
                    is_back = 1;
                    if (qos) {
                        unsigned char ack[4] = {0x40, 2, c->in[i + c->at], c->in[i + c->at + 1]};
                        write_all(c->fd, ack, 4);
                    }
                }
                i += size;
            }
            memmove(c->in, c->in + i, c->have -= i);
            if (is_back) {
                total++;
                if (t > begin && count < room) trips[count++] = (t - c->sent) * 1e6;
                again(c, qos);
            }
        }
    }
    qsort(trips, count, sizeof *trips, by_size);
    printf("{\"messages\": %ld, \"seconds\": %.6f, \"all\": %ld, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", count,
           end - begin, total, count ? trips[count / 2] : 0, count ? trips[count * 99 / 100] : 0);
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: mqtt_load flood|echo HOST PORT SECONDS QOS PAYLOAD_BYTES WINDOW|CONNECTIONS\n");
        return 2;
    }
    if (!strcmp(argv[1], "flood"))
        flood(argv[2], atoi(argv[3]), atof(argv[4]), atoi(argv[5]), atoi(argv[6]), atol(argv[7]));
    else
        echo(argv[2], atoi(argv[3]), atof(argv[4]), atoi(argv[5]), atoi(argv[6]), atoi(argv[7]));
    return 0;
}
