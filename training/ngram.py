"""Bigram and trigram baselines (interpolated absolute discounting / Kneser-Ney-like) on the held-out tokens."""
import sys; sys.path.insert(0,'/work/main/training')
import numpy as np, data, json
from pathlib import Path
F=Path('/work/env/demo/clean'); V=4096
tr=data.load(F/'train.npy.xz').astype(np.int64); he=data.load(F/'heldout.npy.xz').astype(np.int64)
uni=np.bincount(tr,minlength=V)+0.5; uni=uni/uni.sum()
def counts(keys):
    u,c=np.unique(keys,return_counts=True); return u,c
D=0.75
def look(u,c,k):
    i=np.searchsorted(u,k); i=np.minimum(i,len(u)-1); return np.where(u[i]==k,c[i],0)
b=tr[:-1]*V+tr[1:]; bu,bc=counts(b)
ctx_total=np.bincount(tr[:-1],minlength=V); ctx_types=np.bincount(bu//V,minlength=V)
def p2(prev,cur):
    t=np.maximum(ctx_total[prev],1); n=ctx_types[prev]
    c=look(bu,bc,prev*V+cur)
    return np.where(ctx_total[prev]>0,np.maximum(c-D,0)/t+D*n/t*uni[cur],uni[cur])
h2=-np.log(p2(he[:-1],he[1:])).mean(); print('bigram',h2,flush=True)
del b
t=(tr[:-2]*V+tr[1:-1])*V+tr[2:]; t.sort()
edge=np.flatnonzero(np.r_[True,t[1:]!=t[:-1]]); tu=t[edge]; tc=np.diff(np.r_[edge,len(t)]); del t
pu,start=np.unique(tu//V,return_index=True); ptypes=np.diff(np.r_[start,len(tu)]); ptot=np.add.reduceat(tc,start)
pair=he[:-2]*V+he[1:-1]
i=np.minimum(np.searchsorted(pu,pair),len(pu)-1); ok=pu[i]==pair
tot=np.where(ok,ptot[i],1); ty=np.where(ok,ptypes[i],0)
c=look(tu,tc,pair*V+he[2:])
q=p2(he[1:-1],he[2:])
p=np.where(ok,np.maximum(c-D,0)/tot+D*ty/tot*q,q)
h3=-np.log(p).mean(); print('trigram',h3)
(F/'ngram.json').write_text(json.dumps({'unigram':float(-np.log(uni[he]).mean()),'bigram':float(h2),'trigram':float(h3)}))
