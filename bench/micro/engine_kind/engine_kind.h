// What the files of engine_kind have in common: a program with an engine inside, the word between them and the driver,
// and the experiments of ends.c.
#pragma once
#include "../engine.h"

enum kind { THREAD, PROCESS };
enum { PAGES = 64 };
enum order { NONE, EVICT, OPEN_SHADOW, BURN, CRASH, SLEEP, DROP_RIGHTS, CONFINE, LEAVE };

// Seen by the driver, the program and the engine.
struct shared {
    volatile int engine_id;           // its tid
    volatile int ready, order, error; // orders of the program to the engine; it sets NONE when done
    volatile long answer;
    volatile bool spin;
    volatile bool hold; // the driver may not go on before the program says so
    volatile double began_s, tid_word_s, pidfd_s, kcmp_s, woke_s;
    volatile int step;
    int program_pid, uffd; // the descriptor's number in the engine's table
    char said[256];
};
extern struct shared *s;

extern char *data;     // what the engine keeps out, and brings back
extern enum kind kind; // of this program's engine

// Starts an engine inside this process. Returns 0, or the error of clone.
int engine_start(enum kind which);
// Gives the engine an order, waits until it has done it, and returns its answer.
long ask(enum order order);
// Whether a page of `data` holds what was written there at the start.
bool is_right(int page);

#define SAY(...) snprintf(s->said + strlen(s->said), sizeof s->said - strlen(s->said), __VA_ARGS__)

// The experiments of ends.c: functions without an argument run with the engine inside, `watch_...` in the driver.
void exit_of_last_thread(void);
void watch_exit_of_last_thread(pid_t pid);
void exec_program(void);
void exec_while_asleep(void);
void watch_exec(pid_t pid);
void exit_group_of_program(void);
void exit_of_large_program(void);
void watch_exit(pid_t pid);
void kill_of_program(void);
void watch_kill(pid_t pid);
void touch_after_hold(void);
void watch_engine_killed(pid_t pid);
void watch_engine_killed_but_held(pid_t pid);
void engine_crash(void);
void core_dump(void);
void watch_core_dump(pid_t pid);
void busy_text(void);
void busy_text_with_farewell(void);

extern const char *self_path; // this program's file, for those of busy text
void farewell(void);
