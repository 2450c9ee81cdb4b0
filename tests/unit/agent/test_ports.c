/* Which port the ranks of a job get. */
#include "support/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/ports.h"

/* A listening socket on a port that the kernel chooses. */
static int listen_somewhere(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int setup(void **state)
{
    static struct ports p;
    p = (struct ports){0};
    pthread_mutex_init(&p.lock, NULL);
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    struct ports *p = *state;
    pthread_mutex_destroy(&p->lock);
    return 0;
}

/* Two ports without a listener. */
static void free_ports(uint16_t out[2])
{
    int a = listen_somewhere(&out[0]), b = listen_somewhere(&out[1]);
    close(a);
    close(b);
}

TEST_IN(setup, teardown, the_first_free_one_and_then_the_next)
{
    uint16_t ports[2], got = 0;
    free_ports(ports);
    assert_int_equal(ports_find(*state, (struct hl_api_uint16_list){ports, 2}, &got), HL_OK);
    assert_int_equal(got, ports[0]);
    assert_int_equal(ports_find(*state, (struct hl_api_uint16_list){ports, 2}, &got), HL_OK);
    assert_int_equal(got, ports[1]); /* the first one is already given out */
    got = 7;
    assert_int_equal(ports_find(*state, (struct hl_api_uint16_list){ports, 2}, &got), HL_EBUSY);
    assert_int_equal(got, 7);
}

TEST_IN(setup, teardown, a_port_where_somebody_listens_is_passed_over)
{
    uint16_t ports[3] = {0}, spare[2], got = 0;
    int fd = listen_somewhere(&ports[1]); /* 0 is not a port */
    free_ports(spare);
    ports[2] = spare[0];
    assert_int_equal(ports_find(*state, (struct hl_api_uint16_list){ports, 2}, &got), HL_EBUSY);
    assert_int_equal(ports_find(*state, (struct hl_api_uint16_list){ports, 3}, &got), HL_OK);
    assert_int_equal(got, ports[2]);
    close(fd);
}

TEST_IN(setup, teardown, what_was_given_long_ago_is_given_again)
{
    struct ports *p = *state;
    uint16_t ports[2], got = 0;
    free_ports(ports);
    assert_int_equal(ports_find(p, (struct hl_api_uint16_list){ports, 1}, &got), HL_OK);
    p->given[0].until_ns = 1; /* as if the ten minutes were over */
    assert_int_equal(ports_find(p, (struct hl_api_uint16_list){ports, 1}, &got), HL_OK);
    assert_int_equal(got, ports[0]);
}
