interface Props {
  /** Null where nothing failed. */
  why: string | null;
  onRetry?: () => void;
}

/** What went wrong, announced where it appears; what can be tried again says so. */
export function Failure({ why, onRetry }: Props) {
  if (why === null) return null;
  return (
    <div class="notice bad" role="alert">
      <p>{why}</p>
      {onRetry && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}
