// Findings: one record a kind and place; write-write conflicts wait for the store to see whether the value
// changed.
#pragma once
#include "state.h"

extern "C" void msl_switch(void** save, void* to);
asm(R"(
.text
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void report(const char* kind, uint64_t pc, uint64_t pc2, const char* fmt, ...) {
  Worker* w = tw;
  std::lock_guard<std::mutex> l(rep_mu);
  for (auto& r : reps)
    if (r.pc == pc && r.pc2 == pc2 && !strcmp(r.kind, kind)) {
      r.count++;
      return;
    }
  if (reps.size() >= 64) return;
  MslReport r;
  memset(&r, 0, sizeof r);
  snprintf(r.kind, sizeof r.kind, "%s", kind);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r.msg, sizeof r.msg, fmt, ap);
  va_end(ap);
  r.pc = pc;
  r.pc2 = pc2;
  r.count = 1;
  if (w) {
    memcpy(r.tgid, w->tgid, sizeof r.tgid);
    r.tid = w->cur ? w->cur->tid : ~0u;
  }
  reps.push_back(r);
}
void add_report(MslReport& r) {
  std::lock_guard<std::mutex> l(rep_mu);
  for (auto& q : reps)
    if (q.pc == r.pc && q.pc2 == r.pc2 && !strcmp(q.kind, r.kind)) {
      q.count++;
      return;
    }
  if (reps.size() < 64) reps.push_back(r);
}
void flush_pend(Worker* w) {  // the stores have happened: did they change the value?
  for (auto& p : *w->pend) {
    if (!memcmp(p.addr, p.old, p.n)) {
      if (D->flags & 32) continue;
      strcpy(p.r.kind, "race-same-value");
    }
    add_report(p.r);
  }
  w->pend->clear();
}
void to_main(Worker* w) {
  if (!w->pend->empty()) flush_pend(w);
  Fiber* f = w->cur;
  w->switches++;
  msl_switch(&f->sp, w->main_sp);
}
[[noreturn]] void die(Worker* w) {
  w->abort = true;
  g_abort = true;
  to_main(w);
  abort();
}
