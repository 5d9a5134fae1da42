/* Doors of a program without a network namespace: a library to be preloaded.
 *
 * A program that has it reaches its peers, and is reached, through Unix sockets
 * in a private folder only:
 *
 * - What listens on a TCP port, listens on FOLDER/in-PORT instead.
 * - A connection to a peer is one to FOLDER/out-NUMBER, where a proxy listens.
 *
 * Ports of peers are theirs alone: a connection to another address with such a
 * port is refused, as is one whose door is gone. Nothing is sent in the clear.
 *
 * The environment has, with "," after each entry:
 *
 *   TFPS_DOORS        the folder
 *   TFPS_DOORS_OUT    "IP-PORT:NUMBER", an entry for each address of a peer
 *   TFPS_DOORS_IN     "PORT", an entry for each port that a proxy serves for the
 *                     program, and so has bound already
 *   TFPS_DOORS_HERE   "IP", an entry for each address of the program itself
 *   TFPS_DOORS_NAMES  "HOST-PORT:IP", an entry for each port at a host's name,
 *                     which is looked up as the address IP: the host's own one
 *                     may not be known yet, and may change
 *
 * Callers see TCP sockets: their names and options are those of TCP.
 */
/* Not _GNU_SOURCE: with it, glibc gives these functions arguments of a type that
 * not all compilers take for that of their definitions here. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef RTLD_NEXT
#define RTLD_NEXT ((void *)-1L)
#endif
int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags);

#define MAX_SOCKETS (1 << 16)
#define MAX_TEXT 128
#define NUM_ATTEMPTS 100 /* to connect to a door whose queue is full */
#define ATTEMPT_NSECS 1000000

enum state { PLAIN, NAMED, LISTENING, CONNECTED };

/* What callers are told of a socket that is none of TCP. */
struct disguise {
  enum state state;
  int bound; /* TCP socket that keeps a listener's port from other programs */
  struct sockaddr_storage own;
  struct sockaddr_storage peer;
};

static struct disguise disguises[MAX_SOCKETS];
/* Several listeners may share a port, and then share a door. */
static pthread_mutex_t listening = PTHREAD_MUTEX_INITIALIZER;
static int last_listener = -1;

/* Copies of the variables: the program may change its environment. */
static char *folder, *out_doors, *in_doors, *here, *names;

static char *copy_of(const char *variable) {
  const char *value = getenv(variable);
  return strdup(value == NULL ? "" : value);
}

__attribute__((constructor)) static void begin(void) {
  folder = copy_of("TFPS_DOORS");
  out_doors = copy_of("TFPS_DOORS_OUT");
  in_doors = copy_of("TFPS_DOORS_IN");
  here = copy_of("TFPS_DOORS_HERE");
  names = copy_of("TFPS_DOORS_NAMES");
}

#define REAL(name)                                      \
  static __typeof__(name) *real_##name;                 \
  if (!real_##name) {                                   \
    real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
  }

static int domain_of(int fd) {
  REAL(getsockopt);
  int domain = -1;
  socklen_t size = sizeof domain;
  real_getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain;
}

static int is_tcp(int fd) {
  REAL(getsockopt);
  int type = 0, domain = domain_of(fd);
  socklen_t size = sizeof type;
  if (folder == NULL || !*folder) return 0;
  if (real_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size)) return 0;
  return type == SOCK_STREAM && (domain == AF_INET || domain == AF_INET6);
}

/* Not all ways to close a socket come here, so its kind is looked at, too. */
static struct disguise *disguise_of(int fd) {
  if (fd < 0 || fd >= MAX_SOCKETS || disguises[fd].state == PLAIN) return NULL;
  int is_unix = domain_of(fd) == AF_UNIX;
  if (is_unix == (disguises[fd].state != NAMED)) return &disguises[fd];
  disguises[fd].state = PLAIN;
  return NULL;
}

static int port_of(const struct sockaddr *address) {
  if (address->sa_family == AF_INET) {
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
  }
  if (address->sa_family == AF_INET6) {
    return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
  }
  return -1;
}

/* Writes an address as text, IPv4 wherever IPv6 has another form of it. */
static void format_ip(const struct sockaddr *address, char *text) {
  if (address->sa_family == AF_INET) {
    const struct sockaddr_in *ip4 = (const struct sockaddr_in *)address;
    inet_ntop(AF_INET, &ip4->sin_addr, text, MAX_TEXT);
    return;
  }
  const struct in6_addr *ip6 =
      &((const struct sockaddr_in6 *)address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(ip6)) {
    inet_ntop(AF_INET, &ip6->s6_addr[12], text, MAX_TEXT);
  } else if (IN6_IS_ADDR_LOOPBACK(ip6)) {
    strcpy(text, "127.0.0.1");
  } else if (IN6_IS_ADDR_UNSPECIFIED(ip6)) {
    strcpy(text, "0.0.0.0");
  } else {
    inet_ntop(AF_INET6, ip6, text, MAX_TEXT);
  }
}

/* Returns what follows a text at the begin of an entry of a list, or NULL. */
static const char *find(const char *list, const char *text) {
  size_t size = strlen(text);
  while (list != NULL && *list) {
    if (!strncmp(list, text, size)) return list + size;
    list = strchr(list, ',');
    if (list != NULL) list++;
  }
  return NULL;
}

static int is_served(int port) {
  char entry[MAX_TEXT];
  snprintf(entry, sizeof entry, "%d,", port);
  return find(in_doors, entry) != NULL;
}

static int is_here(const char *ip) {
  char entry[MAX_TEXT];
  snprintf(entry, sizeof entry, "%.64s,", ip);
  return !strncmp(ip, "127.", 4) || !strcmp(ip, "0.0.0.0") ||
         find(here, entry) != NULL;
}

static int door(struct sockaddr_un *path, const char *kind, int number) {
  memset(path, 0, sizeof *path);
  path->sun_family = AF_UNIX;
  int size = snprintf(path->sun_path, sizeof path->sun_path, "%s/%s-%d",
                      folder, kind, number);
  return size < (int)sizeof path->sun_path;
}

enum way { DIRECT, THROUGH_DOOR, DOOR_OR_DIRECT, REFUSED };

/* Finds the way to an address, and its door if there is one. */
static enum way find_way(const struct sockaddr *address,
                         struct sockaddr_un *path) {
  char ip[MAX_TEXT], text[2 * MAX_TEXT];
  int port = port_of(address);
  format_ip(address, ip);
  snprintf(text, sizeof text, "%s-%d:", ip, port);
  const char *number = find(out_doors, text);
  if (number != NULL) {
    return door(path, "out", atoi(number)) ? THROUGH_DOOR : REFUSED;
  }
  snprintf(text, sizeof text, "-%d:", port);
  int is_of_peers = strstr(out_doors, text) != NULL;
  if (is_here(ip) && door(path, "in", port)) {
    if (is_served(port)) return THROUGH_DOOR;
    if (!access(path->sun_path, F_OK)) { /* maybe of who has ended */
      return is_of_peers ? THROUGH_DOOR : DOOR_OR_DIRECT;
    }
  }
  return is_of_peers ? REFUSED : DIRECT;
}

/* Puts a Unix socket in the place of a socket, with that one's flags. */
static int replace(int fd, int with) {
  int status = fcntl(fd, F_GETFL), flags = fcntl(fd, F_GETFD);
  if (dup2(with, fd) < 0) return -1;
  fcntl(fd, F_SETFL, status);
  fcntl(fd, F_SETFD, flags);
  return 0;
}

static int close_and_fail(int fd, int error) {
  REAL(close);
  if (fd >= 0) real_close(fd);
  errno = error;
  return -1;
}

static int fill(const struct sockaddr_storage *from, struct sockaddr *address,
                socklen_t *size) {
  socklen_t own = from->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                             : sizeof(struct sockaddr_in6);
  memcpy(address, from, own < *size ? own : *size);
  *size = own;
  return 0;
}

static void copy_address(struct sockaddr_storage *to,
                         const struct sockaddr *from, socklen_t size) {
  memset(to, 0, sizeof *to);
  memcpy(to, from, size < sizeof *to ? size : sizeof *to);
}

/* What a program is told of who has connected through a door. */
static void set_loopback(struct sockaddr_storage *address, sa_family_t family) {
  memset(address, 0, sizeof *address);
  address->ss_family = family;
  if (family == AF_INET) {
    ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
  }
}

int bind(int fd, const struct sockaddr *address, socklen_t size) {
  REAL(bind);
  if (fd >= 0 && fd < MAX_SOCKETS && is_tcp(fd) && port_of(address) > 0 &&
      is_served(port_of(address))) { /* the proxy has the port */
    disguises[fd].state = NAMED;
    copy_address(&disguises[fd].own, address, size);
    return 0;
  }
  return real_bind(fd, address, size);
}

/* Returns a socket that listens at a port's door. */
static int open_door(int port, int backlog) {
  REAL(bind);
  REAL(listen);
  REAL(connect);
  struct sockaddr_un path;
  if (!door(&path, "in", port)) return close_and_fail(-1, ENAMETOOLONG);
  int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  if (real_bind(made, (struct sockaddr *)&path, sizeof path)) {
    if (errno != EADDRINUSE) return close_and_fail(made, errno);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int is_used = !real_connect(probe, (struct sockaddr *)&path, sizeof path) ||
                  errno == EAGAIN;
    close_and_fail(probe, 0);
    if (is_used) return close_and_fail(made, EADDRINUSE);
    unlink(path.sun_path); /* of a process that has ended */
    if (real_bind(made, (struct sockaddr *)&path, sizeof path)) {
      return close_and_fail(made, errno);
    }
  }
  /* The queue of TCP lets callers wait outside of it; this one refuses them. */
  if (backlog < SOMAXCONN) backlog = SOMAXCONN;
  if (chmod(path.sun_path, 0600) || real_listen(made, backlog)) {
    return close_and_fail(made, errno);
  }
  return made;
}

static int listen_at(int fd, int port, int backlog) {
  for (int other = 0; other <= last_listener; other++) {
    struct disguise *found = disguise_of(other);
    if (other != fd && found != NULL && found->state == LISTENING &&
        port_of((struct sockaddr *)&found->own) == port) {
      return replace(fd, other);
    }
  }
  int made = open_door(port, backlog);
  if (made < 0) return -1;
  int result = replace(fd, made);
  close_and_fail(made, errno);
  return result;
}

int listen(int fd, int backlog) {
  REAL(listen);
  REAL(bind);
  REAL(getsockname);
  if (!is_tcp(fd)) return real_listen(fd, backlog);
  if (fd >= MAX_SOCKETS) return close_and_fail(-1, EMFILE);
  struct disguise *named = &disguises[fd];
  if (disguise_of(fd) == NULL) {
    socklen_t size = sizeof named->own;
    if (real_getsockname(fd, (struct sockaddr *)&named->own, &size)) return -1;
    if (port_of((struct sockaddr *)&named->own) == 0) { /* takes any port */
      if (real_bind(fd, (struct sockaddr *)&named->own, size)) return -1;
      size = sizeof named->own;
      if (real_getsockname(fd, (struct sockaddr *)&named->own, &size)) {
        return -1;
      }
    }
    named->bound = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (named->bound < 0) return -1;
  } else {
    named->bound = -1; /* the proxy keeps it */
  }
  int port = port_of((struct sockaddr *)&named->own);
  pthread_mutex_lock(&listening);
  int result = listen_at(fd, port, backlog);
  if (!result) named->state = LISTENING;
  if (result && named->bound >= 0) close_and_fail(named->bound, errno);
  if (fd > last_listener) last_listener = fd;
  pthread_mutex_unlock(&listening);
  return result;
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
  REAL(accept4);
  struct disguise *listener = disguise_of(fd);
  if (listener == NULL) return real_accept4(fd, address, size, flags);
  int made = real_accept4(fd, NULL, NULL, flags);
  if (made < 0) return made;
  if (made >= MAX_SOCKETS) return close_and_fail(made, EMFILE);
  struct disguise *accepted = &disguises[made];
  accepted->own = listener->own;
  set_loopback(&accepted->peer, listener->own.ss_family);
  accepted->state = CONNECTED;
  if (address != NULL) fill(&accepted->peer, address, size);
  return made;
}

int accept(int fd, struct sockaddr *address, socklen_t *size) {
  return accept4(fd, address, size, 0);
}

/* Connects to a door, whose queue may be full for a moment. */
static int connect_to(int fd, const struct sockaddr_un *path) {
  REAL(connect);
  const struct timespec pause = {0, ATTEMPT_NSECS};
  for (int i = 0; i < NUM_ATTEMPTS; i++) {
    if (!real_connect(fd, (const struct sockaddr *)path, sizeof *path)) {
      return 0;
    }
    if (errno != EAGAIN) break;
    nanosleep(&pause, NULL);
  }
  return -1;
}

int connect(int fd, const struct sockaddr *address, socklen_t size) {
  REAL(connect);
  struct sockaddr_un path;
  if (address == NULL || port_of(address) <= 0 || !is_tcp(fd)) {
    return real_connect(fd, address, size);
  }
  enum way way = find_way(address, &path);
  if (way == DIRECT) return real_connect(fd, address, size);
  if (way == REFUSED || fd >= MAX_SOCKETS) {
    return close_and_fail(-1, ECONNREFUSED);
  }
  int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return -1;
  if (connect_to(made, &path)) {
    close_and_fail(made, ECONNREFUSED);
    return way == DOOR_OR_DIRECT ? real_connect(fd, address, size) : -1;
  }
  struct disguise *connected = &disguises[fd];
  set_loopback(&connected->own, address->sa_family);
  copy_address(&connected->peer, address, size);
  int result = replace(fd, made);
  if (!result) connected->state = CONNECTED;
  close_and_fail(made, errno);
  return result;
}

int getaddrinfo(const char *host, const char *port,
                const struct addrinfo *hints, struct addrinfo **found) {
  REAL(getaddrinfo);
  char text[NI_MAXHOST + NI_MAXSERV], ip[MAX_TEXT];
  if (host != NULL && port != NULL) {
    snprintf(text, sizeof text, "%s-%s:", host, port);
    const char *entry = find(names, text);
    if (entry != NULL && sscanf(entry, "%15[0-9.]", ip) == 1) host = ip;
  }
  return real_getaddrinfo(host, port, hints, found);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *size) {
  REAL(getsockname);
  struct disguise *found = disguise_of(fd);
  if (found == NULL) return real_getsockname(fd, address, size);
  return fill(&found->own, address, size);
}

int getpeername(int fd, struct sockaddr *address, socklen_t *size) {
  REAL(getpeername);
  struct disguise *found = disguise_of(fd);
  if (found == NULL || found->state != CONNECTED) {
    return real_getpeername(fd, address, size);
  }
  return fill(&found->peer, address, size);
}

static int is_of_tcp(int level) {
  return level == IPPROTO_TCP || level == IPPROTO_IP || level == IPPROTO_IPV6;
}

int setsockopt(int fd, int level, int name, const void *value,
               socklen_t size) {
  REAL(setsockopt);
  struct disguise *found = disguise_of(fd);
  if (found != NULL && found->state != NAMED && is_of_tcp(level)) return 0;
  return real_setsockopt(fd, level, name, value, size);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
  REAL(getsockopt);
  struct disguise *found = disguise_of(fd);
  if (found != NULL && found->state != NAMED && is_of_tcp(level)) {
    memset(value, 0, *size);
    if (*size == sizeof(int)) *(int *)value = 1; /* such as TCP_NODELAY */
    return 0;
  }
  return real_getsockopt(fd, level, name, value, size);
}

int close(int fd) {
  REAL(close);
  if (fd >= 0 && fd < MAX_SOCKETS) {
    struct disguise *closed = &disguises[fd];
    if (closed->state == LISTENING && closed->bound >= 0) {
      real_close(closed->bound);
    }
    closed->state = PLAIN;
  }
  return real_close(fd);
}
