/* A simulator in C: CartPole, whose actions come from a run of jaxrl.
 *
 * It speaks jaxrl-link (docs/guides/jaxrl_link.md) with nothing but the C library and POSIX
 * sockets, and is explained in docs/guides/external_simulators.md. The physics are those of
 * gymnasium's CartPole-v1. To build and run it, with JAXRL_EXTERNAL_TOKEN set if the run has one:
 *
 *     cc -std=c99 -O2 -o external_cartpole external_cartpole.c -lm
 *     ./external_cartpole 127.0.0.1:9900
 *
 * It exits with 0 when the run has ended, with 1 when the run cannot be reached, the connection is
 * lost or something else speaks on the port, and with 2 when the run refuses it, for a wrong token
 * say. The reason is printed in one sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOST = 1, REFUSED_BY_RUN = 2 };

static void fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(code);
}

/* --- bytes that grow --- */

typedef struct {
    unsigned char *data;
    size_t size, capacity;
} Bytes;

static void reserve(Bytes *bytes, size_t capacity) {
    if (capacity <= bytes->capacity) return;
    bytes->capacity = 2 * capacity;
    bytes->data = realloc(bytes->data, bytes->capacity);
    if (bytes->data == NULL) fail(LOST, "There is no memory for %zu bytes.", bytes->capacity);
}

static void append(Bytes *bytes, const void *data, size_t size) {
    reserve(bytes, bytes->size + size + 1);
    if (size > 0) memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    bytes->data[bytes->size] = 0; /* so that a text may be read as one */
}

static void append_text(Bytes *bytes, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof text) fail(LOST, "A text is too long.");
    append(bytes, text, (size_t)length);
}

static void append_padding(Bytes *bytes, size_t position) {
    append(bytes, "\0\0\0\0\0\0\0", (8 - position % 8) % 8);
}

/* --- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) --- */

static uint32_t sha_constants[64], sha_start[8];

/* The constants are the first 32 bits of the fractions of roots of the first primes. */
static void derive_constants(void) {
    int count = 0;
    for (int n = 2; count < 64; n++) {
        int is_prime = 1;
        for (int divisor = 2; divisor * divisor <= n; divisor++) is_prime &= n % divisor != 0;
        if (!is_prime) continue;
        double root = cbrt(n), square_root = sqrt(n);
        sha_constants[count] = (uint32_t)((root - floor(root)) * 4294967296.0);
        if (count < 8)
            sha_start[count] = (uint32_t)((square_root - floor(square_root)) * 4294967296.0);
        count++;
    }
}

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void mix(uint32_t h[8], const unsigned char *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t first = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                         ((e & v[5]) ^ (~e & v[6])) + sha_constants[i] + w[i];
        uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                          ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

static void sha256(const unsigned char *data, size_t size, unsigned char digest[32]) {
    Bytes padded = {0};
    uint64_t bits = 8 * (uint64_t)size;
    uint32_t h[8];
    memcpy(h, sha_start, sizeof h);
    append(&padded, data, size);
    append(&padded, "\x80", 1);
    while (padded.size % 64 != 56) append(&padded, "", 1);
    for (int i = 0; i < 8; i++) append(&padded, &(unsigned char){bits >> (56 - 8 * i) & 255}, 1);
    for (size_t i = 0; i < padded.size; i += 64) mix(h, padded.data + i);
    for (int i = 0; i < 32; i++) digest[i] = h[i / 4] >> (24 - 8 * (i % 4)) & 255;
    free(padded.data);
}

static void to_hex(const unsigned char *data, size_t size, char *text) {
    for (size_t i = 0; i < size; i++) sprintf(text + 2 * i, "%02x", data[i]);
}

/* The proof that a side has the token: it is never sent itself. */
static void make_proof(const char *token, const char *said, char proof[65]) {
    unsigned char key[64] = {0}, digest[32];
    Bytes inner = {0}, outer = {0};
    if (strlen(token) > sizeof key)
        sha256((const unsigned char *)token, strlen(token), key);
    else
        memcpy(key, token, strlen(token));
    for (int i = 0; i < 64; i++) {
        append(&inner, &(unsigned char){key[i] ^ 0x36}, 1);
        append(&outer, &(unsigned char){key[i] ^ 0x5c}, 1);
    }
    append(&inner, said, strlen(said));
    sha256(inner.data, inner.size, digest);
    append(&outer, digest, sizeof digest);
    sha256(outer.data, outer.size, digest);
    to_hex(digest, sizeof digest, proof);
    free(inner.data);
    free(outer.data);
}

/* --- JSON, as far as heads of messages need it --- */

static const char *skip_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static const char *skip_value(const char *p) {
    int depth = 0;
    do {
        p = skip_space(p);
        if (*p == '"') {
            for (p++; *p != 0 && *p != '"'; p++)
                if (*p == '\\' && p[1] != 0) p++;
            p += *p != 0;
        } else if (*p != 0 && strchr("{[", *p)) {
            depth++, p++;
        } else if (*p != 0 && strchr("]}", *p)) {
            depth--, p++;
        } else if (*p != 0 && strchr(",:", *p)) {
            p++;
        } else {
            p += strcspn(p, ",:]} \t\r\n");
        }
    } while (depth > 0 && *p != 0);
    return skip_space(p);
}

/* Returns the value of an object's entry; NULL if there is none. */
static const char *find_value(const char *object, const char *key) {
    const char *p = skip_space(object);
    if (*p != '{') return NULL;
    for (p = skip_space(p + 1); *p == '"'; p = skip_space(p + 1)) {
        const char *name = p + 1;
        p = skip_value(p);
        if (*p != ':') return NULL;
        p = skip_space(p + 1);
        if (strncmp(name, key, strlen(key)) == 0 && name[strlen(key)] == '"') return p;
        p = skip_value(p);
        if (*p != ',') return NULL;
    }
    return NULL;
}

static const char *get_value(const char *object, const char *key) {
    const char *value = find_value(object, key);
    if (value == NULL) fail(LOST, "A message of the run has no entry '%s'.", key);
    return value;
}

static long long get_number(const char *object, const char *key) {
    return strtoll(get_value(object, key), NULL, 10);
}

/* Copies a JSON string, without the backslashes before quotes; returns what follows it. */
static const char *copy_text(const char *value, char *text, size_t size) {
    size_t length = 0;
    const char *p = value + (*value == '"');
    for (; *p != 0 && *p != '"'; p++) {
        if (*p == '\\' && (p[1] == '"' || p[1] == '\\' || p[1] == '/')) p++;
        if (length + 1 < size) text[length++] = *p;
    }
    text[length] = 0;
    return skip_value(value);
}

/* --- frames --- */

enum Kind {
    HELLO = 1, CHALLENGE, AUTH, WELCOME, REFUSED, EPISODES, ACK, ACT, ACTIONS,
    GET_POLICY, POLICY, PING, PONG, NEW_VERSION, BYE, DRAIN
};

enum { HEADER_SIZE = 12, MAX_FRAME = 64 << 20, QUIET_MS = 5000, MAX_QUIET = 12 };

static int connection = -1;

/* A message that is being written: the text of its head without the closing brace, the list of its
 * arrays, and their data. */
typedef struct {
    Bytes head, described, data;
} Message;

static Message begin(const char *first_entry, long long number) {
    Message message = {{0}, {0}, {0}};
    append_text(&message.head, "{\"%s\":%lld", first_entry, number);
    return message;
}

/* Adds an array; `tail` is the text of its shape after the first number. */
static void add_array(Message *message, const char *name, const char *dtype, size_t number,
                      const char *tail, const void *data, size_t size) {
    append_text(&message->described, "%s[\"%s\",\"%s\",[%zu%s]", message->described.size ? "," : "",
                name, dtype, number, tail);
    append(&message->data, data, size);
    append_padding(&message->data, message->data.size);
}

static void put_integer(unsigned char *place, uint32_t value) {
    for (int i = 0; i < 4; i++) place[i] = value >> 8 * i & 255;
}

static uint32_t take_integer(const unsigned char *place) {
    return place[0] | place[1] << 8 | place[2] << 16 | (uint32_t)place[3] << 24;
}

static void send_message(enum Kind kind, Message *message) {
    unsigned char start[HEADER_SIZE + 4] = {'J', 'X', 'R', 'L', 1, (unsigned char)kind, 0, 0};
    if (message->described.size > 0) {
        append_text(&message->head, ",\"arrays\":[");
        append(&message->head, message->described.data, message->described.size);
        append(&message->head, "]", 1);
    }
    append(&message->head, "}", 1);
    size_t head_size = message->head.size;
    put_integer(start + HEADER_SIZE, (uint32_t)head_size);
    append_padding(&message->head, 4 + head_size);
    put_integer(start + 8, (uint32_t)(4 + message->head.size + message->data.size));
    Bytes frame = {0};
    append(&frame, start, sizeof start);
    append(&frame, message->head.data, message->head.size);
    append(&frame, message->data.data, message->data.size);
    for (size_t sent = 0; sent < frame.size;) {
        ssize_t count = send(connection, frame.data + sent, frame.size - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) break; /* what the run said last can still be read */
        sent += (size_t)count;
    }
    free(frame.data);
    free(message->head.data);
    free(message->described.data);
    free(message->data.data);
}

static void read_exactly(unsigned char *data, size_t size) {
    while (size > 0) {
        ssize_t count = recv(connection, data, size, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) fail(LOST, "The connection to the run is lost.");
        data += count;
        size -= (size_t)count;
    }
}

/* The latest message that was read. */
static struct {
    enum Kind kind;
    Bytes payload; /* the arrays, at multiples of eight bytes */
    Bytes head;
    size_t arrays_at;
} received;

static void read_frame(void) {
    unsigned char header[HEADER_SIZE];
    read_exactly(header, HEADER_SIZE);
    uint32_t size = take_integer(header + 8);
    if (memcmp(header, "JXRL\1", 5) != 0 || size < 4 || size > MAX_FRAME)
        fail(LOST, "The other side does not speak version 1 of jaxrl-link.");
    reserve(&received.payload, size);
    read_exactly(received.payload.data, size);
    received.payload.size = size;
    uint32_t head_size = take_integer(received.payload.data);
    if (head_size > size - 4) fail(LOST, "A message of the run is too short for its head.");
    received.kind = (enum Kind)header[5];
    received.head.size = 0;
    append(&received.head, received.payload.data + 4, head_size);
    received.arrays_at = (4 + head_size + 7) / 8 * 8;
}

/* --- handshake --- */

static long long num_recorded, max_steps, part_length, num_parts, num_requests, num_episodes;
static double sum_of_returns;

static const char *get_head(void) { return (const char *)received.head.data; }

static void raise_refusal(void) {
    char sentence[1024];
    copy_text(get_value(get_head(), "error"), sentence, sizeof sentence);
    fail(REFUSED_BY_RUN, "%s", sentence);
}

static void read_answer(enum Kind kind) {
    read_frame();
    if (received.kind == REFUSED) raise_refusal();
    if (received.kind != kind) fail(LOST, "The run answered with a message of another kind.");
}

static void shake_hands(const char *token) {
    unsigned char random[48];
    char nonce[65], name[33], server_nonce[65], said[512], proof[65], got[65];
    FILE *source = fopen("/dev/urandom", "rb");
    if (source == NULL || fread(random, 1, sizeof random, source) != sizeof random)
        fail(LOST, "/dev/urandom cannot be read.");
    fclose(source);
    to_hex(random, 32, nonce);
    to_hex(random + 32, 16, name); /* every client has a name of its own */

    Message hello = begin("minor", 0);
    append_text(&hello.head, ",\"client_id\":\"%s\",\"nonce\":\"%s\"", name, nonce);
    send_message(HELLO, &hello);
    read_answer(CHALLENGE);
    copy_text(get_value(get_head(), "nonce"), server_nonce, sizeof server_nonce);
    if (*get_value(get_head(), "needs_token") == 't' && *token == 0)
        fail(REFUSED_BY_RUN, "The run asks for a token: set JAXRL_EXTERNAL_TOKEN.");

    const char *format = "[\"jaxrl-link\", 1, 0, \"%s\", \"%s\", \"%s\", \"%s\"]";
    snprintf(said, sizeof said, format, "client", name, nonce, server_nonce);
    make_proof(token, said, proof);
    Message auth = begin("num_recorded", 0);
    append_text(&auth.head, ",\"num_delivered\":0,\"next_number\":0,\"open_episodes\":{},"
                            "\"secret\":null,\"spaces_hash\":null,\"proof\":\"%s\"", proof);
    send_message(AUTH, &auth);
    read_answer(WELCOME);
    snprintf(said, sizeof said, format, "server", name, nonce, server_nonce);
    make_proof(token, said, proof);
    copy_text(get_value(get_head(), "proof"), got, sizeof got);
    unsigned char difference = 0; /* compared in constant time */
    for (int i = 0; i < 65; i++) difference |= (unsigned char)(proof[i] ^ got[i]);
    if (difference != 0)
        fail(REFUSED_BY_RUN, "The run could not prove that it has the token: it is another one.");
    max_steps = get_number(get_head(), "max_steps");
    part_length = get_number(get_head(), "part_length");
}

/* --- messages of a run --- */

/* Reads the next message; if nothing arrives for a while, a sign of life is sent. */
static void read_message(void) {
    struct pollfd polled = {connection, POLLIN, 0};
    for (int quiet = 0; poll(&polled, 1, QUIET_MS) == 0; quiet++) {
        if (quiet == MAX_QUIET) fail(LOST, "The run is silent.");
        Message ping = begin("num_recorded", num_recorded);
        send_message(PING, &ping);
    }
    read_frame();
    if (received.kind == REFUSED) raise_refusal();
    if (received.kind == ACK) max_steps = get_number(get_head(), "max_steps");
    if (received.kind == DRAIN) {
        printf("The run has ended after %lld episodes with a mean return of %.1f.\n", num_episodes,
               num_episodes > 0 ? sum_of_returns / (double)num_episodes : 0.0);
        exit(0);
    }
}

/* --- recording --- */

enum { MAX_COLUMNS = 64, OBS_SIZE = 4 };

/* Array that ACTIONS has beside the action, and that is sent with the steps as it came: the log-
 * probability, the inputs of the distribution, what the policy remembered. */
typedef struct {
    char name[128], dtype[8], tail[128];
    Bytes values;
} Column;

static Column columns[MAX_COLUMNS];
static int num_columns;
static Bytes observations, rewards, versions;

/* Returns the action in ACTIONS, and records the columns. */
static int take_columns(void) {
    size_t position = received.arrays_at;
    int action = -1;
    num_columns = 0;
    const char *p = skip_space(get_value(get_head(), "arrays") + 1);
    while (*p == '[') { /* ["name", "dtype", [1, ...]] */
        Column *column = &columns[num_columns];
        char *name = column->name + 2; /* in EPISODES, the number of the part precedes it */
        memcpy(column->name, "0.", 2);
        p = copy_text(skip_space(p + 1), name, sizeof column->name - 2);
        p = copy_text(skip_space(p + 1), column->dtype, sizeof column->dtype);
        const char *shape = skip_space(p + 1), *end = skip_value(shape);
        size_t size = (size_t)(column->dtype[2] - '0'), length = 0;
        for (char *rest = (char *)shape; *rest != 0 && *rest != ']';) {
            size *= (size_t)strtoull(rest + 1, &rest, 10);
            if (length == 0) length = (size_t)(end - rest); /* after the number of rows, 1 */
        }
        snprintf(column->tail, sizeof column->tail, "%.*s", (int)length, end - length);
        if (position > received.payload.size || size > received.payload.size - position)
            fail(LOST, "ACTIONS is too short.");
        const unsigned char *data = received.payload.data + position;
        position += (size + 7) / 8 * 8;
        if (strcmp(name, "env_action.0") == 0) {
            action = (int)take_integer(data);
        } else {
            append(&column->values, data, size);
            if (++num_columns == MAX_COLUMNS) fail(LOST, "The policy records too many columns.");
        }
        p = skip_space(end + (*end == ']')); /* of the entry */
        p = skip_space(p + (*p == ','));
    }
    if (action < 0) fail(LOST, "ACTIONS has no action.");
    return action;
}

static int get_action(const char *episode, long long t, const float obs[OBS_SIZE], float reward) {
    num_recorded++;
    Message act = begin("request", num_requests++);
    append_text(&act.head, ",\"episode_ids\":[\"%s\"],\"t\":[%lld],\"training_enabled\":[true],"
                           "\"num_recorded\":%lld", episode, t, num_recorded);
    add_array(&act, "obs.0", "<f4", 1, ",4]", obs, OBS_SIZE * sizeof *obs);
    add_array(&act, "reward", "<f4", 1, "]", &reward, sizeof reward);
    send_message(ACT, &act);
    do read_message();
    while (received.kind != ACTIONS);
    int64_t version = get_number(get_head(), "version");
    append(&observations, obs, OBS_SIZE * sizeof *obs);
    append(&versions, &version, sizeof version);
    return take_columns();
}

/* Sends the steps since the last part; `end` is a JSON value. */
static void send_part(const char *episode, long long t, const float obs[OBS_SIZE],
                      const char *end) {
    size_t length = rewards.size / sizeof(float);
    if (length == 0) return;
    append(&observations, obs, OBS_SIZE * sizeof *obs); /* the successor of the last step */
    Message part = begin("number", num_parts++);
    append_text(&part.head, ",\"num_recorded\":%lld,\"parts\":[{\"episode_id\":\"%s\","
                            "\"t_started\":%lld,\"length\":%zu,\"training_enabled\":true,"
                            "\"end\":%s,\"source\":\"policy\"}]",
                num_recorded, episode, t - (long long)length, length, end);
    add_array(&part, "0.obs.0", "<f4", length + 1, ",4]", observations.data, observations.size);
    add_array(&part, "0.reward", "<f4", length, "]", rewards.data, rewards.size);
    add_array(&part, "0.version", "<i8", length, "]", versions.data, versions.size);
    for (int i = 0; i < num_columns; i++) {
        Column *column = &columns[i];
        add_array(&part, column->name, column->dtype, length, column->tail, column->values.data,
                  column->values.size);
        column->values.size = 0;
    }
    observations.size = rewards.size = versions.size = 0;
    send_message(EPISODES, &part);
}

/* --- the simulator itself --- */

static float draw(void) { return (float)(0.1 * rand() / RAND_MAX - 0.05); }

/* Advances the cart and the pole by 0.02 s; returns whether one of them has left its range. */
static int advance(float state[OBS_SIZE], int action) {
    double force = action == 1 ? 10.0 : -10.0, cosine = cos(state[2]), sine = sin(state[2]);
    double push = (force + 0.05 * state[3] * state[3] * sine) / 1.1;
    double turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    double change[OBS_SIZE] = {state[1], push - 0.05 * turn * cosine / 1.1, state[3], turn};
    for (int i = 0; i < OBS_SIZE; i++) state[i] += (float)(0.02 * change[i]);
    return fabsf(state[0]) > 2.4f || fabsf(state[2]) > 0.20943951f;
}

static void play_episode(void) {
    char episode[32];
    snprintf(episode, sizeof episode, "%lld", num_episodes);
    float state[OBS_SIZE] = {draw(), draw(), draw(), draw()};
    const float reward = 1.0f;
    long long t = 0;
    for (int has_ended = 0; !has_ended;) {
        if ((long long)(rewards.size / sizeof reward) >= part_length)
            send_part(episode, t, state, "null");
        if (num_recorded >= max_steps) send_part(episode, t, state, "null");
        while (num_recorded >= max_steps) read_message(); /* until there is room in the run */
        int action = get_action(episode, t, state, t > 0 ? reward : 0.0f);
        int has_fallen = advance(state, action);
        append(&rewards, &reward, sizeof reward);
        has_ended = ++t == 500 || has_fallen;
        const char *end = has_fallen ? "\"terminated\"" : "\"truncated\"";
        if (has_ended) send_part(episode, t, state, end);
    }
    num_episodes++;
    sum_of_returns += (double)t;
}

static void connect_to(const char *address) {
    char host[256];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host)
        fail(LOST, "The address must be HOST:PORT, such as 127.0.0.1:9900, got '%s'.", address);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct addrinfo hints = {0}, *found = NULL;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        fail(LOST, "The address '%s' is not known.", address);
    for (struct addrinfo *each = found; each != NULL && connection < 0; each = each->ai_next) {
        connection = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        if (connection >= 0 && connect(connection, each->ai_addr, each->ai_addrlen) != 0) {
            close(connection);
            connection = -1;
        }
    }
    freeaddrinfo(found);
    if (connection < 0) fail(LOST, "The run at %s cannot be reached.", address);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

int main(int argc, char **argv) {
    const char *token = getenv("JAXRL_EXTERNAL_TOKEN");
    if (argc < 2 || argc > 3) fail(LOST, "usage: %s HOST:PORT [SEED]", argv[0]);
    if (*(unsigned char *)&(int){1} != 1) fail(LOST, "Arrays must be little-endian.");
    srand(argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)getpid());
    derive_constants();
    connect_to(argv[1]);
    shake_hands(token == NULL ? "" : token);
    for (;;) play_episode();
}
