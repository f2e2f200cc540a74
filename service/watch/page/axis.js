// Round values along an axis.

export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const unit = roundUnits((high - low) / most).find((one) => places(low, high, one) <= most);
  const first = Math.ceil(low / unit - 1e-9);
  return Array.from({ length: places(low, high, unit) }, (_, place) => round((first + place) * unit));
}

const roundUnits = (size) => [1, 2, 5, 10, 20].map((one) => round(one * 10 ** Math.floor(Math.log10(size))));

const places = (low, high, unit) => Math.floor(high / unit + 1e-9) - Math.ceil(low / unit - 1e-9) + 1;

const round = (value) => Number(value.toPrecision(12)); // without the rest of a sum of tenths
