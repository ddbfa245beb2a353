"use strict";
// Unpacks the page's numbers: packing.py says how they are packed.

async function unpacked(text) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Arrays(await new Response(stream).json());
}

class Arrays {
  constructor(packed) {
    this.packed = packed;
    this.known = new Map();
  }

  /** The array of that number; a gap is null. Callers do not change it. */
  get(number) {
    let values = this.known.get(number);
    if (values === undefined) {
      const [decimals, ...kept] = this.packed[number];
      values = decimals === null ? kept : this.summed(kept, decimals);
      this.known.set(number, values);
    }
    return values;
  }

  summed(steps, decimals) {
    const power = 10 ** Math.abs(decimals);
    let integer = 0;
    return steps.map((step) => {
      if (step === null) return null;
      integer += step;
      return decimals >= 0 ? integer / power : integer * power;
    });
  }
}
