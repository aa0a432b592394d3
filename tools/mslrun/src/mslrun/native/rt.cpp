// Runtime of the CPU runner: the interface to Python, the functions kernels call, the instrumentation's entry
// points. The kernel object is compiled with -fsanitize=thread as an instrumentation pass only; the __tsan_*
// functions that it calls are defined here and libtsan is not linked.
#include "workers.h"

extern "C" {
int msl_init() {
  if (region) return 0;
  region = (char*)mmap(nullptr, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return region == MAP_FAILED ? -1 : 0;
}
// kind 1: input, 2: output / read-write. align_end: last byte is the last before a guard page (fast mode
// finds overruns exactly)
void* msl_buf(unsigned i, size_t size, int kind, unsigned gran, int init, int align_end, const char* name) {
  Slot& s = slots[i];
  s.size = size;
  s.kind = kind;
  s.gran = gran;
  s.init = init;
  snprintf(s.name, sizeof s.name, "%s", name);
  s.maplen = (size + PAGE - 1) / PAGE * PAGE;
  if (!s.maplen) s.maplen = PAGE;
  s.map = region + ((uint64_t)i << SLOT_SHIFT) + (1ull << (SLOT_SHIFT - 1));
  if (mmap(s.map, s.maplen, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
           -1, 0) == MAP_FAILED)
    return nullptr;
  s.base =
      align_end ? s.map + (s.maplen - (size + 15) / 16 * 16) : s.map;  // 16-byte alignment, as float4 needs
  s.cells = nullptr;
  s.ncell = 0;
  if (kind == K_RW) {
    s.ncell = (size + gran - 1) / gran;
    if (!s.ncell) s.ncell = 1;
    s.cells = (Cell*)mmap(nullptr, s.ncell * sizeof(Cell), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (init)
      for (size_t c = 0; c < s.ncell; c++) s.cells[c].written = 0xff;
  }
  return s.base;
}
void msl_buf_free(unsigned i) {
  Slot& s = slots[i];
  if (s.kind == K_NONE || s.kind == K_TG) return;
  mmap(s.map, s.maplen, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (s.cells) munmap(s.cells, s.ncell * sizeof(Cell));
  s.kind = K_NONE;
  s.cells = nullptr;
  s.size = 0;
}
int msl_run(MslDispatch* d, uint64_t lo, uint64_t hi) {
  D = d;
  img_lo = lo;
  img_hi = hi;
  reps.clear();
  g_abort = false;
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = on_fault;
  sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &sa, &old_segv);
  sigaction(SIGBUS, &sa, &old_bus);
  sigaction(SIGFPE, &sa, &old_fpe);
  sigaction(SIGILL, &sa, &old_ill);
  struct sigaction old_to;
  sigaction(SIGRTMIN + 5, &sa, &old_to);
  std::mutex wm;
  std::condition_variable wc;
  bool done = false;
  std::thread dog;
  if (d->timeout_s > 0)
    dog = std::thread([&] {
      std::unique_lock<std::mutex> l(wm);
      if (wc.wait_for(l, std::chrono::duration<double>(d->timeout_s), [&] { return done; })) return;
      for (unsigned i = 0; i < MAXW; i++)
        if (workers[i] && workers[i]->busy) pthread_kill(workers[i]->th, SIGRTMIN + 5);
      wc.wait(l, [&] { return done; });
    });
  std::atomic<uint64_t> next(0);
  unsigned nt = d->nthreads < 1 ? 1 : d->nthreads > MAXW ? MAXW : d->nthreads;
  if (d->flags & 1) nt = 1;
  if (nt == 1)
    work(0, 1, &next);
  else {
    std::vector<std::thread> v;
    for (unsigned i = 0; i < nt; i++) v.emplace_back(work, i, nt, &next);
    for (auto& t : v) t.join();
  }
  if (dog.joinable()) {
    {
      std::lock_guard<std::mutex> l(wm);
      done = true;
    }
    wc.notify_all();
    dog.join();
  }
  sigaction(SIGRTMIN + 5, &old_to, nullptr);
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaction(SIGFPE, &old_fpe, nullptr);
  sigaction(SIGILL, &old_ill, nullptr);
  d->n_access = d->n_switch = 0;
  d->tg_bytes = 0;
  for (unsigned i = 0; i < nt; i++) {
    d->n_access += workers[i]->acc;
    d->n_switch += workers[i]->switches;
    if (workers[i]->tgbytes > d->tg_bytes) d->tg_bytes = workers[i]->tgbytes;
  }
  d->aborted = g_abort;
  if ((d->flags & 1) && !(d->flags & 8) && !d->aborted)
    for (unsigned i = 0; i < TG_SLOT0; i++) {
      Slot& s = slots[i];
      if (s.kind != K_RW || s.init) continue;
      size_t miss = 0, first = 0;
      for (size_t c = 0; c < s.ncell && c * s.gran < s.size; c++) {
        unsigned m = (1u << s.gran) - 1;
        if ((s.cells[c].written & m) != m) {
          if (!miss) first = c;
          miss++;
        }
      }
      if (miss)
        report("unwritten-output", i, 0,
               "output '%s': %zu of %zu elements never written, first at element %zu", s.name, miss, s.ncell,
               first);
    }
  d->n_reports = reps.size();
  return 0;
}
const MslReport* msl_report(unsigned i) { return &reps[i]; }

// ------------------------------------------------------------------ called by kernels
void msl_rt_simd(unsigned site, const char* op, simd_fn fn, void* in, void* out) {
  Worker* w = tw;
  Fiber* f = w->cur;
  SG& g = w->sg[f->tid / 32];
  f->state = SIMD;
  f->site = site;
  f->op = op;
  f->fn = fn;
  f->in = in;
  f->out = out;
  f->flags = 0;
  if (g.nsimd == 0) {
    g.site = site;
    g.mixed = false;
  } else if (g.site != site)
    g.mixed = true;
  if (++g.nsimd == g.lanes && !g.mixed) {
    resolve_simd(w, f->tid / 32, site);
    if (D->order != 2) {
      clr_ready(w, f->tid);
      return;
    }
  }
  to_main(w);
}
void msl_rt_simd_barrier(unsigned site, unsigned flags) {
  Worker* w = tw;
  Fiber* f = w->cur;
  SG& g = w->sg[f->tid / 32];
  f->state = SIMD;
  f->site = site;
  f->op = "simdgroup_barrier";
  f->fn = nullptr;
  f->in = f->out = nullptr;
  f->flags = flags;
  if (g.nsimd == 0) {
    g.site = site;
    g.mixed = false;
  } else if (g.site != site)
    g.mixed = true;
  if (++g.nsimd == g.lanes && !g.mixed) {
    resolve_simd(w, f->tid / 32, site);
    if (D->order != 2) {
      clr_ready(w, f->tid);
      return;
    }
  }
  to_main(w);
}
void msl_rt_barrier(unsigned site, unsigned flags) {
  Worker* w = tw;
  Fiber* f = w->cur;
  if (w->nbar == 0) {
    w->barsite = site;
    w->barmixed = false;
    w->barflags = flags;
  } else {
    if (w->barsite != site) w->barmixed = true;
    w->barflags &= flags;
  }
  f->state = BAR;
  f->site = site;
  w->sg[f->tid / 32].nbar++;
  if (++w->nbar == w->alive) {
    release_barrier(w);
    if (D->order != 2) {
      clr_ready(w, f->tid);
      return;
    }
  }
  to_main(w);
}
unsigned msl_rt_lane() { return tw->cur->tid & 31; }
unsigned msl_rt_simd_width() { return 32; }
unsigned msl_rt_fuzz() { return D->fuzz ? (unsigned)(rnd(tw->rng) & 31) : 0; }
void* msl_rt_tg(const void* id, size_t size, size_t align, const char* name) {
  Worker* w = tw;
  for (auto& v : *w->vars)
    if (v.id == id) {
      if (v.serial != w->serial) {
        v.serial = w->serial;
        memset(w->tg->base + v.off, 0xff, v.size);
      }
      return w->tg->base + v.off;
    }
  uint32_t o = tg_alloc(w, id, size, align, name);
  if (o == ~0u) die(w);
  w->vars->back().serial = w->serial;
  memset(w->tg->base + o, 0xff, size);
  return w->tg->base + o;
}
void msl_rt_atomic(const volatile void* p, unsigned size, int write) {
  if (D->flags & 1)
    access((void*)p, size, write == 0 ? 1 : write == 1 ? 2 : 3, true, __builtin_return_address(0));
}
void msl_rt_error(const char* kind, const char* msg) {
  Worker* w = tw;
  report(kind, w->errsite, 0, "%s (line %u)", msg, w->errsite / 512);
}

// float -> bfloat, round to nearest even (libgcc 12 lacks it). Declared with _Float16: same register, and g++
// 12 has no __bf16 in C++.
__attribute__((weak)) _Float16 __truncsfbf2(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  uint16_t h = (u & 0x7fffffff) > 0x7f800000 ? (uint16_t)((u >> 16) | 0x40)
                                             : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  _Float16 r;
  memcpy(&r, &h, 2);
  return r;
}
// ------------------------------------------------------------------ the instrumentation's entry points
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define RA __builtin_return_address(0)
#define X(n)                                                                   \
  void __tsan_read##n(void* p) { access(p, n, 1, false, RA); }                 \
  void __tsan_write##n(void* p) { access(p, n, 2, false, RA); }                \
  void __tsan_read_write##n(void* p) { access(p, n, 3, false, RA); }           \
  void __tsan_unaligned_read##n(void* p) { access(p, n, 1, false, RA); }       \
  void __tsan_unaligned_write##n(void* p) { access(p, n, 2, false, RA); }      \
  void __tsan_unaligned_read_write##n(void* p) { access(p, n, 3, false, RA); } \
  void __tsan_volatile_read##n(void* p) { access(p, n, 1, false, RA); }        \
  void __tsan_volatile_write##n(void* p) { access(p, n, 2, false, RA); }
X(1) X(2) X(4) X(8) X(16) void __tsan_read_range(void* p, size_t n) { access(p, n, 1, false, RA); }
void __tsan_write_range(void* p, size_t n) { access(p, n, 2, false, RA); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* d, const void* s, size_t n) {
  access((void*)s, n, 1, false, RA);
  access(d, n, 2, false, RA);
  return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n) {
  access((void*)s, n, 1, false, RA);
  access(d, n, 2, false, RA);
  return memmove(d, s, n);
}
void* __tsan_memset(void* d, int c, size_t n) {
  access(d, n, 2, false, RA);
  return memset(d, c, n);
}
}
