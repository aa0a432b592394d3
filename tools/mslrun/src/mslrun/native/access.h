// Checks of every memory access: bounds, uninitialised reads, writes to inputs, races.
#pragma once
#include "schedule.h"

namespace {
inline uint64_t pack(Worker* w, Fiber* f, uint16_t ep, uint16_t sep, bool atomic) {
  return (uint64_t)(w->serial & 0xfffff) << 44 | (uint64_t)f->tid << 34 | (uint64_t)ep << 18 |
         (uint64_t)sep << 2 | (uint64_t)atomic << 1 | 1;
}
inline bool unordered(uint64_t p, uint64_t c,
                      bool tgmem) {  // is the earlier access p unordered with the current access c?
  if (!(p & 1)) return false;
  if ((p & 2) && (c & 2)) return false;
  if ((p >> 44) != (c >> 44))
    return !tgmem;  // other threadgroup: device memory is never ordered within a dispatch
  const unsigned pt = p >> 34 & 1023, ct = c >> 34 & 1023;
  if (pt == ct) return false;
  if ((p >> 18 & 0xffff) != (c >> 18 & 0xffff)) return false;
  if (pt / 32 == ct / 32 && (p >> 2 & 0xffff) != (c >> 2 & 0xffff)) return false;
  return true;
}
void make_race(MslReport& r, Worker* w, Slot& s, const char* kind, size_t rel, uint64_t p, uint32_t ppc,
               uint64_t pc, bool tgmem) {
  const char* nm = s.name;
  size_t off = rel;
  if (tgmem)
    for (auto& v : *w->vars)
      if (rel >= v.off && rel < v.off + v.size) {
        nm = v.name;
        off = rel - v.off;
      }
  const bool other = (p >> 44) != (w->serial & 0xfffff);
  memset(&r, 0, sizeof r);
  strcpy(r.kind, "race");
  r.pc = pc;
  r.pc2 = img_lo + ppc;
  r.count = 1;
  memcpy(r.tgid, w->tgid, sizeof r.tgid);
  r.tid = w->cur->tid;
  snprintf(r.msg, sizeof r.msg, "%s on %s '%s' byte %zu: thread %u and %sthread %u, no barrier between", kind,
           tgmem ? "threadgroup memory" : "device buffer", nm, off, w->cur->tid,
           other ? "(another threadgroup's) " : "", (unsigned)(p >> 34 & 1023));
}
void race(Worker* w, Slot& s, const char* kind, size_t rel, uint64_t p, uint32_t ppc, uint64_t pc,
          bool tgmem) {
  MslReport r;
  make_race(r, w, s, kind, rel, p, ppc, pc, tgmem);
  add_report(r);
}
void access_slow(Worker* w, uintptr_t a, size_t n, unsigned rw, bool atomic, uint64_t pc) {
  const uint64_t off = a - (uintptr_t)region;
  Fiber* f = w->cur;
  if (off >= REGION) {
    const uintptr_t sb = (uintptr_t)w->stacks + (size_t)f->tid * STACK;
    if (a - sb < STACK || (a >= img_lo && a < img_hi)) return;
    report("wild-pointer", pc, 0,
           "%s of %zu bytes at %p: not a buffer, not threadgroup memory, not this thread's stack",
           rw & 2 ? "write" : "read", n, (void*)a);
    die(w);
  }
  Slot& s = slots[off >> SLOT_SHIFT];
  const size_t rel = a - (uintptr_t)s.base;
  const bool tg = s.kind == K_TG;
  if (s.kind == K_NONE || rel >= s.size || n > s.size - rel ||
      (tg && (!w->tgmap[rel] || w->tgmap[rel] != w->tgmap[rel + n - 1]))) {
    const char* nm = s.name;
    long long o = (long long)rel;
    size_t sz = s.size;
    if (tg) {
      long long best = 1ll << 40;
      for (auto& v : *w->vars) {
        long long d = (long long)rel < v.off ? (long long)v.off - (long long)rel
                                             : (long long)rel - (long long)(v.off + v.size);
        if (d < best) {
          best = d;
          nm = v.name;
          o = (long long)rel - v.off;
          sz = v.size;
        }
      }
    }
    report("out-of-bounds", pc, 0, "%s of %zu bytes at byte offset %lld of %s '%s' (%zu bytes)",
           rw & 2 ? "write" : "read", n, o, tg ? "threadgroup variable" : "buffer", nm, sz);
    die(w);
  }
  if (s.kind == K_RO) {
    if (rw & 2) {
      report("write-to-input", pc, 0, "write to input buffer '%s' at byte %zu", s.name, rel);
      die(w);
    }
    return;
  }
  const SG& g = w->sg[f->tid / 32];
  const uint64_t me = tg ? pack(w, f, w->ep_tg, g.sep_tg, atomic) : pack(w, f, w->ep_dev, g.sep_dev, atomic);
  const uint32_t pc32 = (uint32_t)(pc - img_lo);
  const unsigned gr = s.gran;
  const size_t e = rel + n;
  for (size_t c = rel / gr; c * gr < e; c++) {
    Cell& x = s.cells[c];
    unsigned m = (1u << gr) - 1;
    const size_t b0 = c * gr;
    if (rel > b0) m &= ~((1u << (rel - b0)) - 1);
    if (e < b0 + gr) m &= (1u << (e - b0)) - 1;
    if (tg && (x.w & 1) && (x.w >> 44) != (me >> 44)) {
      x.w = x.r1 = x.r2 = 0;
      x.written = 0;
    }
    if (tg && (x.r1 & 1) && (x.r1 >> 44) != (me >> 44)) {
      x.r1 = x.r2 = 0;
    }
    if (rw & 1) {
      if ((x.written & m) != m && !(tg && (D->flags & 4))) {
        const char* nm = s.name;
        size_t o = rel;
        if (tg)
          for (auto& v : *w->vars)
            if (rel >= v.off && rel < v.off + v.size) {
              nm = v.name;
              o = rel - v.off;
            }
        report("uninitialised-read", pc, 0, "read of %s '%s' byte %zu, never written%s",
               tg ? "threadgroup memory" : "output buffer", nm, o, tg ? " in this threadgroup" : "");
      }
      if ((x.wmask & m) && unordered(x.w, me, tg)) race(w, s, "read after write", rel, x.w, x.wpc, pc, tg);
      if ((x.r1 >> 34) == (me >> 34) || !(x.r1 & 1)) {
        x.r1 = me;
        x.r1pc = pc32;
        x.rmask1 = m;
      } else {
        x.r2 = x.r1;
        x.r2pc = x.r1pc;
        x.rmask2 = x.rmask1;
        x.r1 = me;
        x.r1pc = pc32;
        x.rmask1 = m;
      }
    }
    if (rw & 2) {
      if ((x.wmask & m) && unordered(x.w, me, tg)) {
        if (atomic || (rw & 1) || n > 16)
          race(w, s, "write after write", rel, x.w, x.wpc, pc, tg);
        else if (w->pend->empty() || w->pend->back().addr != (char*)a) {
          Worker::Pend q;
          q.addr = (char*)a;
          q.n = n;
          memcpy(q.old, q.addr, n);
          make_race(q.r, w, s, "write after write", rel, x.w, x.wpc, pc, tg);
          w->pend->push_back(q);
        }
      }
      if ((x.rmask1 & m) && unordered(x.r1, me, tg))
        race(w, s, "write after read", rel, x.r1, x.r1pc, pc, tg);
      if ((x.rmask2 & m) && unordered(x.r2, me, tg))
        race(w, s, "write after read", rel, x.r2, x.r2pc, pc, tg);
      x.w = me;
      x.wpc = pc32;
      x.wmask = m;
      x.written |= m;
    }
  }
}
inline void access(void* p, size_t n, unsigned rw, bool atomic, void* ret) {
  Worker* w = tw;
  if (!w || !w->cur || !n) return;
  const uintptr_t a = (uintptr_t)p;
  if (__builtin_expect(!w->pend->empty(), 0)) flush_pend(w);
  w->acc++;
  // private stack and read-only inputs: the common, cheap cases
  const uint64_t off = a - (uintptr_t)region;
  if (off < REGION) {
    Slot& s = slots[off >> SLOT_SHIFT];
    const size_t rel = a - (uintptr_t)s.base;
    if (!(s.kind == K_RO && rw == 1 && rel < s.size && n <= s.size - rel))
      access_slow(w, a, n, rw, atomic, (uint64_t)ret - 1);
    if (w->pre && --w->pre == 0) {
      w->pre = 1 + rnd(w->rng) % (2 * D->preempt);
      Fiber* f = w->cur;
      set_ready(w, f->tid);
      to_main(w);
    }
    if (++w->steps > D->max_steps) {
      report("step-limit", (uint64_t)ret - 1, 0,
             "more than %llu memory accesses in one threadgroup: endless loop?",
             (unsigned long long)D->max_steps);
      die(w);
    }
  } else
    access_slow(w, a, n, rw, atomic, (uint64_t)ret - 1);
}

}  // namespace
