// Fibers, barriers, rendezvous of a SIMD-group, the order of execution, one threadgroup from start to end.
#pragma once
#include "report.h"

namespace {
void set_ready(Worker* w, unsigned t) {
  w->f[t].state = READY;
  w->ready[t >> 6] |= 1ull << (t & 63);
  w->nready++;
}
void clr_ready(Worker* w, unsigned t) {
  w->ready[t >> 6] &= ~(1ull << (t & 63));
  w->nready--;
}

void release_barrier(Worker* w) {
  if (w->alive != w->n && !(D->flags & 16))
    report("barrier-divergence", (uint64_t)w->barsite, 1,
           "threadgroup_barrier at line %u reached by %u of %u threads; the others have returned",
           w->barsite / 512, w->alive, w->n);
  if (w->barmixed)
    report("barrier-divergence", (uint64_t)w->barsite, 2,
           "threads of one threadgroup wait at different threadgroup_barriers (one is at line %u)",
           w->barsite / 512);
  if (w->barflags & 2) w->ep_tg++;
  if (w->barflags & 1) w->ep_dev++;
  for (unsigned t = 0; t < w->n; t++)
    if (w->f[t].state == BAR) set_ready(w, t);
  for (unsigned s = 0; s < w->nsg; s++) w->sg[s].nbar = 0;
  w->nbar = 0;
}
void resolve_simd(Worker* w, unsigned s, unsigned site) {  // all lanes of simdgroup s that wait at `site`
  SG& g = w->sg[s];
  void *in[32], *out[32];
  unsigned long long mask = 0;
  Fiber* any = nullptr;
  unsigned flags = ~0u;
  const unsigned base = s * 32;
  for (unsigned i = 0; i < g.lanes; i++) {
    Fiber& f = w->f[base + i];
    in[i] = out[i] = nullptr;
    if (f.state == SIMD && f.site == site) {
      mask |= 1ull << i;
      in[i] = f.in;
      out[i] = f.out;
      any = &f;
      flags &= f.flags;
    }
  }
  const unsigned k = __builtin_popcountll(mask);
  if (k != g.lanes && !(D->flags & 2))
    report("simd-divergence", site, 0,
           "%s at line %u executed by %u of the %u lanes of a SIMD-group (mask %08llx)", any->op, site / 512,
           k, g.lanes, mask);
  w->errsite = site;
  if (any->fn) any->fn(mask, in, out, g.lanes);
  if (flags & 2) g.sep_tg++;
  if (flags & 1) g.sep_dev++;
  for (unsigned i = 0; i < g.lanes; i++)
    if (mask >> i & 1) set_ready(w, base + i);
  g.nsimd -= k;
  g.mixed = false;
  bool first = true;
  if (g.nsimd)
    for (unsigned i = 0; i < g.lanes; i++)
      if (w->f[base + i].state == SIMD) {
        if (first) {
          g.site = w->f[base + i].site;
          first = false;
        } else if (w->f[base + i].site != g.site)
          g.mixed = true;
      }
}
Fiber* pick(Worker* w) {
  if (!w->nready) return nullptr;
  const unsigned nw = (w->n + 63) / 64;
  unsigned t = 0;
  switch (D->order) {
    case 0:
    case 3:
      for (unsigned i = 0; i < nw; i++)
        if (w->ready[i]) {
          t = i * 64 + __builtin_ctzll(w->ready[i]);
          break;
        }
      break;
    case 1:
    case 4:
      for (unsigned i = nw; i-- > 0;)
        if (w->ready[i]) {
          t = i * 64 + 63 - __builtin_clzll(w->ready[i]);
          break;
        }
      break;
    default: {
      unsigned k = rnd(w->rng) % w->nready;
      for (unsigned i = 0; i < nw; i++) {
        unsigned c = __builtin_popcountll(w->ready[i]);
        if (k < c) {
          uint64_t b = w->ready[i];
          while (k--) b &= b - 1;
          t = i * 64 + __builtin_ctzll(b);
          break;
        }
        k -= c;
      }
    }
  }
  clr_ready(w, t);
  return &w->f[t];
}
void fiber_main() {
  Worker* w = tw;
  D->entry(&w->cur->a);
  w = tw;
  Fiber* f = w->cur;
  f->state = DONE;
  w->alive--;
  SG& g = w->sg[f->tid / 32];
  g.alive--;
  if (w->alive && w->nbar == w->alive) release_barrier(w);
  to_main(w);
  abort();
}
void prep_fiber(Worker* w, Fiber* f) {
  void** sp = (void**)(w->stacks + (size_t)(f->tid + 1) * STACK);
  *--sp = nullptr;  // keeps rsp 16-aligned + 8 at entry
  *--sp = (void*)&fiber_main;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  f->sp = sp;
}
void run_tg(Worker* w, const unsigned tgid[3]) {
  unsigned sz[3];
  for (int i = 0; i < 3; i++) {
    unsigned rem = D->grid[i] - tgid[i] * D->tg[i];
    sz[i] = rem < D->tg[i] ? rem : D->tg[i];
    w->tgid[i] = tgid[i];
  }
  const unsigned n = sz[0] * sz[1] * sz[2];
  w->n = n;
  w->nsg = (n + 31) / 32;
  w->alive = n;
  w->nbar = 0;
  w->nready = 0;
  w->ep_dev = w->ep_tg = 1;
  w->serial++;
  w->abort = false;
  w->steps = 0;
  memset(w->ready, 0, sizeof w->ready);
  const unsigned dn = D->tg[0] * D->tg[1] * D->tg[2];
  for (unsigned s = 0; s < w->nsg; s++) {
    SG& g = w->sg[s];
    g.lanes = g.alive = n - s * 32 < 32 ? n - s * 32 : 32;
    g.nsimd = g.nbar = 0;
    g.mixed = false;
    g.sep_dev = g.sep_tg = 1;
  }
  for (unsigned t = 0; t < n; t++) {
    Fiber& f = w->f[t];
    f.tid = t;
    Args& a = f.a;
    const unsigned p[3] = {t % sz[0], t / sz[0] % sz[1], t / sz[0] / sz[1]};
    for (int i = 0; i < 3; i++) {
      a.tpit[i] = p[i];
      a.tgpig[i] = tgid[i];
      a.tpig[i] = tgid[i] * D->tg[i] + p[i];
      a.tpt[i] = sz[i];
      a.dtpt[i] = D->tg[i];
      a.tpg[i] = D->grid[i];
      a.tgpg[i] = (D->grid[i] + D->tg[i] - 1) / D->tg[i];
    }
    a.lane = t % 32;
    a.sg = t / 32;
    a.sgs = w->nsg;
    a.dsgs = (dn + 31) / 32;
    a.tiit = t;
    a.width = 32;
    prep_fiber(w, &f);
    set_ready(w, t);
  }
  // dynamic threadgroup buffers: poison for this threadgroup
  for (auto& v : *w->vars)
    if ((uintptr_t)v.id < 32) {
      v.serial = w->serial;
      memset(w->tg->base + v.off, 0xff, v.size);
    }
  for (;;) {
    Fiber* f = pick(w);
    if (!f) {
      if (!w->alive) break;
      bool any = false;
      for (unsigned s = 0; s < w->nsg && !any; s++)
        if (w->sg[s].nsimd) {  // partial: lowest source position first
          unsigned best = ~0u;
          for (unsigned i = 0; i < w->sg[s].lanes; i++) {
            Fiber& q = w->f[s * 32 + i];
            if (q.state == SIMD && q.site < best) best = q.site;
          }
          resolve_simd(w, s, best);
          any = true;
        }
      if (!any) {
        report("deadlock", 0, 0, "no thread can run (%u alive, %u at a barrier)", w->alive, w->nbar);
        w->abort = true;
        g_abort = true;
        break;
      }
      continue;
    }
    w->cur = f;
    w->switches++;
    msl_switch(&w->main_sp, f->sp);
    w->cur = nullptr;
    if (w->abort) break;
  }
}

}  // namespace
