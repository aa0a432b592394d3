// Workers (one OS thread each): stacks, threadgroup memory, the loop over threadgroups.
#pragma once
#include "faults.h"

namespace {
Worker* workers[MAXW];
Worker* worker(unsigned i) {
  if (workers[i]) return workers[i];
  Worker* w = new Worker();
  w->id = i;
  w->f = (Fiber*)calloc(MAXT, sizeof(Fiber));
  w->stacks = (char*)mmap(nullptr, (size_t)MAXT * STACK, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (unsigned t = 0; t < MAXT; t++) mprotect(w->stacks + (size_t)t * STACK, PAGE, PROT_NONE);
  w->vars = new std::vector<TgVar>();
  w->pend = new std::vector<Worker::Pend>();
  w->tgmap = (uint8_t*)calloc(1, TG_ARENA);
  Slot& s = slots[TG_SLOT0 + i];
  w->tg = &s;
  s.kind = K_TG;
  s.gran = 2;
  s.size = TG_ARENA;
  snprintf(s.name, sizeof s.name, "threadgroup memory");
  s.base =
      (char*)mmap(region + ((uint64_t)(TG_SLOT0 + i) << SLOT_SHIFT) + (1ull << (SLOT_SHIFT - 1)), TG_ARENA,
                  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  s.ncell = TG_ARENA / 2;
  s.cells = (Cell*)mmap(nullptr, s.ncell * sizeof(Cell), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return workers[i] = w;
}
uint32_t tg_alloc(Worker* w, const void* id, size_t size, size_t align, const char* name) {
  TgVar v;
  v.id = id;
  v.size = size;
  v.serial = 0;
  snprintf(v.name, sizeof v.name, "%s", name);
  if (align < 16) align = 16;
  w->tgoff = (w->tgoff + align - 1) / align * align;
  v.off = w->tgoff;
  w->tgbytes += (size + 15) / 16 * 16;
  if (v.off + size + 512 > TG_ARENA || w->tgbytes > D->tg_limit) {
    report("threadgroup-memory", 0, 0,
           "threadgroup memory of this kernel exceeds the limit: %u bytes > %u (at variable '%s')",
           w->tgbytes, D->tg_limit, name);
    return ~0u;
  }
  w->tgoff += size + 256;  // red zone between variables
  w->vars->push_back(v);
  memset(w->tgmap + v.off, (int)(w->vars->size() % 255) + 1, size);
  return v.off;
}
void start_dispatch(Worker* w) {
  w->vars->clear();
  w->pend->clear();
  w->tgbytes = 0;
  memset(w->tgmap, 0, w->tgoff ? (w->tgoff + 512 < TG_ARENA ? w->tgoff + 512 : TG_ARENA) : 512);
  w->tgoff = 256;
  w->acc = w->switches = 0;
  w->rng = D->seed * 0x9e3779b97f4a7c15ull + 0x1234567 + w->id;
  if (!w->rng) w->rng = 1;
  w->pre = (D->flags & 1) ? D->preempt : 0;
  w->cur = nullptr;
  w->abort = false;
  Args a;
  memset(&a, 0, sizeof a);
  memcpy(a.buf, D->buf, sizeof a.buf);
  for (unsigned i = 0; i < 32; i++)
    if (D->tgbuf_bytes[i]) {
      char nm[32];
      snprintf(nm, sizeof nm, "threadgroup(%u)", i);
      uint32_t o = tg_alloc(w, (void*)(uintptr_t)i, D->tgbuf_bytes[i], 16, nm);
      if (o == ~0u) {
        g_abort = true;
        return;
      }
      a.tgbuf[i] = w->tg->base + o;
    }
  const unsigned n = D->tg[0] * D->tg[1] * D->tg[2];
  for (unsigned t = 0; t < n && t < MAXT; t++) w->f[t].a = a;
}
void work(unsigned wid, unsigned nw, std::atomic<uint64_t>* next) {
  Worker* w = worker(wid);
  Worker* saved = tw;
  tw = w;
  w->th = pthread_self();
  w->timeout = false;
  w->ill = -1;
  w->busy = 1;
  static thread_local char* alt = nullptr;
  if (!alt) alt = (char*)malloc(65536);
  stack_t ss, oss;
  ss.ss_sp = alt;
  ss.ss_size = 65536;
  ss.ss_flags = 0;
  sigaltstack(&ss, &oss);
  start_dispatch(w);
  unsigned ng[3];
  for (int i = 0; i < 3; i++) ng[i] = (D->grid[i] + D->tg[i] - 1) / D->tg[i];
  const uint64_t total = (uint64_t)ng[0] * ng[1] * ng[2];
  uint64_t mul = 1, add = 0;
  if (D->order == 2 && total > 1) {
    uint64_t r = D->seed * 2654435761u + 7;
    mul = rnd(r) % total | 1;
    while (std::gcd(mul, total) != 1) mul += 2;
    add = rnd(r) % total;
    mul %= total;
    if (!mul) mul = 1;
  }
  while (!g_abort) {
    uint64_t i = next->fetch_add(1);
    if (i >= total) break;
    if (D->order == 1 || D->order == 4)
      i = total - 1 - i;
    else if (D->order == 2)
      i = (uint64_t)(((unsigned __int128)i * mul + add) % total);
    const unsigned tgid[3] = {unsigned(i % ng[0]), unsigned(i / ng[0] % ng[1]), unsigned(i / ng[0] / ng[1])};
    run_tg(w, tgid);
  }
  w->busy = 0;
  sigaltstack(&oss, nullptr);
  tw = saved;
}
}  // namespace
