// Types and state of the runtime: slots for buffers, fibers, SIMD-groups, workers, dispatch and report
// records.
#pragma once

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdarg.h>
#include <ucontext.h>
#include <chrono>
#include <sys/mman.h>
#include <pthread.h>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#if !defined(__x86_64__)
#error "context switch written for x86-64 only"
#endif

namespace {
constexpr unsigned SLOT_SHIFT =
    36;  // one buffer per 64 GiB slot: any 32-bit index times 16 bytes stays inside
constexpr unsigned NSLOT = 64, TG_SLOT0 = 40, MAXW = 16;
constexpr uint64_t REGION = (uint64_t)NSLOT << SLOT_SHIFT;
constexpr size_t STACK = 256 << 10, PAGE = 4096, TG_ARENA = 1 << 20;
constexpr unsigned MAXT = 1024, W32 = 32;

struct Args {  // same layout as msl::Args
  void* buf[32];
  void* tgbuf[32];
  unsigned tpig[3], tgpig[3], tpit[3], tpt[3], tpg[3], tgpg[3], dtpt[3];
  unsigned lane, sg, sgs, dsgs, tiit, width;
};
typedef void (*simd_fn)(unsigned long long, void* const*, void* const*, unsigned);
}  // namespace
extern "C" struct MslDispatch {
  void (*entry)(const Args*);
  void* buf[32];
  uint32_t tgbuf_bytes[32];
  uint32_t grid[3], tg[3];
  uint32_t order;  // 0 forward, 1 reverse, 2 random, 3 simdgroup-major forward (run one simdgroup as far as
                   // it goes), 4 same reversed
  uint32_t flags;  // 1 check, 2 allow partial simd, 4 allow uninitialised threadgroup reads, 8 allow
                   // unwritten outputs, 16 allow non-uniform barrier
  uint64_t seed;
  uint32_t preempt;  // check mode: mean number of memory accesses between forced yields (0: none)
  uint32_t fuzz;     // vary the order of SIMD reductions
  uint32_t nthreads;
  uint32_t tg_limit;
  double timeout_s;    // 0: none
  uint64_t max_steps;  // check mode: memory accesses per threadgroup before "endless loop"
  // results
  uint64_t n_access, n_switch;
  uint32_t tg_bytes, n_reports, aborted;
};
extern "C" struct MslReport {
  char kind[32];
  char msg[480];
  uint64_t pc, pc2;
  uint32_t count;
  uint32_t tgid[3], tid;
};

namespace {
struct Cell {
  uint64_t w, r1, r2;
  uint32_t wpc, r1pc, r2pc;
  uint8_t written, wmask, rmask1, rmask2;
};
enum { K_NONE, K_RO, K_RW, K_TG };
struct Slot {
  char* base;
  size_t size;
  int kind;
  unsigned gran;
  bool init;
  Cell* cells;
  size_t ncell;
  char* map;
  size_t maplen;
  char name[64];
};
char* region;
Slot slots[NSLOT];
uint64_t img_lo, img_hi;  // kernel image, to tell constant tables from wild pointers
MslDispatch* D;
std::mutex rep_mu;
std::vector<MslReport> reps;
std::atomic<bool> g_abort;

enum { READY, SIMD, BAR, DONE };
struct Fiber {
  void* sp;
  Args a;
  uint16_t tid;
  uint8_t state;
  unsigned site, flags;
  const char* op;
  simd_fn fn;
  void *in, *out;
  void* pc;
};
struct SG {
  unsigned lanes, alive, nsimd, nbar, site;
  bool mixed;
  uint16_t sep_dev, sep_tg;
};
struct TgVar {
  const void* id;
  uint32_t off, size;
  uint32_t serial;
  char name[48];
};
struct Worker {
  Fiber* f;
  char* stacks;
  void* main_sp;
  Fiber* cur;
  unsigned n, nsg, alive, nbar, barsite, barflags;
  bool barmixed;
  SG sg[W32];
  uint64_t ready[MAXT / 64];
  unsigned nready;
  uint16_t ep_dev, ep_tg;
  uint32_t serial;
  unsigned tgid[3];
  Slot* tg;
  std::vector<TgVar>* vars;
  uint32_t tgoff, tgbytes;
  uint8_t* tgmap;
  unsigned errsite;
  pthread_t th;
  std::atomic<int> busy;
  bool timeout;
  int ill;
  uint64_t rng, acc, steps, switches;
  unsigned pre;
  bool abort;
  unsigned id;
  uintptr_t fault;
  struct Pend {
    char* addr;
    uint32_t n;
    uint8_t old[16];
    MslReport r;
  };
  std::vector<Pend>* pend;  // write-write conflicts waiting for the store to happen
};
__attribute__((tls_model("initial-exec"))) thread_local Worker* tw;

uint64_t rnd(uint64_t& s) {
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s;
}

}  // namespace
