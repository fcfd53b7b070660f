package dev.evenkeel.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Product;
import scala.collection.Iterator;
import scala.collection.Iterator$;

/**
 * Wraps the Python data source with features that Spark offers only to Java sources: it reads only the columns and rows
 * that a query needs, and returns columns instead of rows. The Python source does everything else.
 *
 * The columns and conditions of a scan are passed to Python as options of a separate Python source, so they do not affect
 * other scans. Spark evaluates every condition again, so the conditions for stores may match more rows, but not fewer.
 */
public class Source extends PythonDataSourceV2 implements DataSourceRegister {
    static final String NAME = "evenkeel";

    public String shortName() {
        return NAME;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new SourceTable(this, schema);
    }

    public static class SourceTable extends PythonTable {
        private final PythonDataSourceV2 shared;
        private final StructType all;

        SourceTable(PythonDataSourceV2 shared, StructType all) {
            super(shared, NAME, all);
            this.shared = shared;
            this.all = all;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Builder(shared, all, options);
        }
    }

    /** The columns and conditions of one scan. */
    public static class Builder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
        private final PythonDataSourceV2 shared;
        private final CaseInsensitiveStringMap options;
        private final StructField first;
        private final List pushed = new ArrayList();
        private final List conditions = new ArrayList();
        private StructType wanted;

        Builder(PythonDataSourceV2 shared, StructType all, CaseInsensitiveStringMap options) {
            this.shared = shared;
            this.options = options;
            this.first = all.apply(0);
            this.wanted = all;
        }

        public void pruneColumns(StructType required) {
            // Counting rows needs at least one column.
            wanted = required.length() > 0 ? required : new StructType(new StructField[] {first});
        }

        public Filter[] pushFilters(Filter[] filters) {
            for (int i = 0; i < filters.length; i++) {
                List condition = Conditions.of(filters[i], 0);
                if (condition != null) {
                    pushed.add(filters[i]);
                    conditions.add(condition);
                }
            }
            return filters;
        }

        public Filter[] pushedFilters() {
            return (Filter[]) pushed.toArray(new Filter[0]);
        }

        public Scan build() {
            return new ColumnScan(shared, wanted, options, conditions);
        }
    }

    /** Converts conditions to the notation of stores; null if a condition has none. */
    static class Conditions {
        private static final List COMPARISONS = Arrays.asList(new String[] {
            "EqualTo", "=", "LessThan", "<", "LessThanOrEqual", "<=", "GreaterThan", ">", "GreaterThanOrEqual", ">=",
            "StringStartsWith", "starts_with"});
        private static final int DEEPEST = 20;
        private static final int MOST_VALUES = 1000;

        static List of(Object filter, int depth) {
            if (depth > DEEPEST || !(filter instanceof Product)) return null;
            Product parts = (Product) filter;
            String kind = parts.productPrefix();
            if (kind.equals("And") || kind.equals("Or")) {
                List left = of(parts.productElement(0), depth + 1);
                List right = of(parts.productElement(1), depth + 1);
                if (left != null && right != null) return list(kind.toLowerCase(), left, right);
                // One side of an `and` matches more rows, one side of an `or` fewer.
                return kind.equals("Or") ? null : left != null ? left : right;
            }
            if (kind.equals("IsNull")) return list("is_null", parts.productElement(0), null);
            if (kind.equals("In")) return among(parts.productElement(0), (Object[]) parts.productElement(1));
            int place = COMPARISONS.indexOf(kind);
            if (place < 0 || !isPlain(parts.productElement(1))) return null;
            return list(COMPARISONS.get(place + 1), parts.productElement(0), parts.productElement(1));
        }

        private static List among(Object column, Object[] values) {
            for (int i = 0; i < values.length; i++) if (!isPlain(values[i])) return null;
            return values.length > MOST_VALUES ? null : list("in", column, Arrays.asList(values));
        }

        /** Whether a value has the same meaning and notation in Spark and in stores. */
        private static boolean isPlain(Object value) {
            return value instanceof Boolean || value instanceof Byte || value instanceof Short
                || value instanceof Integer || value instanceof Long
                || value instanceof String && ((String) value).indexOf(0) < 0;
        }

        private static List list(Object one, Object two, Object three) {
            List made = new ArrayList();
            made.add(one);
            made.add(two);
            if (three != null) made.add(three);
            return made;
        }
    }

    /** One scan, planned in Python with its own columns and conditions. */
    public static class ColumnScan implements Scan {
        private final PythonDataSourceV2 shared;
        private final StructType wanted;
        private final CaseInsensitiveStringMap options;
        private final List conditions;
        private Batch planned;

        ColumnScan(PythonDataSourceV2 shared, StructType wanted, CaseInsensitiveStringMap options, List conditions) {
            this.shared = shared;
            this.wanted = wanted;
            this.options = options;
            this.conditions = conditions;
        }

        public StructType readSchema() {
            return wanted;
        }

        public String description() {
            return NAME + " " + wanted.simpleString() + ", stores evaluate " + conditions;
        }

        public synchronized Batch toBatch() {
            if (planned == null) planned = new ColumnBatches(batch());
            return planned;
        }

        private PythonBatch batch() {
            PythonDataSourceV2 own = new PythonDataSourceV2();
            own.setShortName(NAME);
            if (!conditions.isEmpty()) return new PythonBatch(own, NAME, wanted, narrowed());
            // Reuse the Python source that was created with the same options to get the schema.
            own.setReadInfo(shared.source().createReadInfoInPython(
                shared.getOrCreateDataSourceInPython(NAME, options, Option.apply(wanted)), wanted, false));
            return new PythonBatch(own, NAME, wanted, options);
        }

        private CaseInsensitiveStringMap narrowed() {
            List all = new ArrayList(conditions);
            all.add(0, "and");
            Map more = new HashMap(options.asCaseSensitiveMap());
            more.keySet().removeIf(new IsFilter());
            try {
                ObjectMapper json = new ObjectMapper();
                if (options.containsKey("filter")) all.add(json.readValue(options.get("filter"), List.class));
                more.put("filter", json.writeValueAsString(all));
            } catch (IOException error) {
                // The option is invalid, and Python raises a better error.
                return options;
            }
            return new CaseInsensitiveStringMap(more);
        }
    }

    static class IsFilter implements java.util.function.Predicate {
        public boolean test(Object name) {
            return "filter".equalsIgnoreCase((String) name);
        }
    }

    static class ColumnBatches implements Batch {
        private final PythonBatch rows;

        ColumnBatches(PythonBatch rows) {
            this.rows = rows;
        }

        public InputPartition[] planInputPartitions() {
            return rows.planInputPartitions();
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Readers((PythonPartitionReaderFactory) rows.createReaderFactory());
        }
    }

    /** Creates the readers on executors. */
    public static class Readers implements PartitionReaderFactory {
        private final PythonPartitionReaderFactory rows;

        Readers(PythonPartitionReaderFactory rows) {
            this.rows = rows;
        }

        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        public PartitionReader createReader(InputPartition partition) {
            return rows.createReader(partition);
        }

        public PartitionReader createColumnarReader(InputPartition partition) {
            return new ColumnReader(batches(((PythonInputPartition) partition).pickedPartition()));
        }

        /** Does what the reader of rows does, without the conversion to rows. */
        private Iterator batches(byte[] split) {
            MapInBatchEvaluatorFactory made =
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source
                    .createMapInBatchEvaluatorFactory(
                        rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
                        "read_from_data_source",
                        UserDefinedPythonDataSource.readInputSchema(),
                        rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
                        PythonCustomMetric.pythonMetrics(),
                        rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
                        rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID);
            InternalRow row = new GenericInternalRow(new Object[] {new GenericInternalRow(new Object[] {split})});
            Iterator input = Iterator$.MODULE$.single(Iterator$.MODULE$.single(row));
            TaskContext task = TaskContext.get();
            return runner(made.createEvaluator()).compute(input, task.partitionId(), task);
        }

        /** Creates the anonymous runner class of the evaluator's only method. */
        private static ArrowPythonRunner runner(Object evaluator) {
            try {
                Class made = Class.forName(evaluator.getClass().getName() + "$$anon$1");
                Object[] arguments = new Object[] {evaluator, new int[][] {new int[] {0}}};
                return (ArrowPythonRunner) made.getConstructors()[0].newInstance(arguments);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** Returns Arrow columns as Spark's columnar batches. */
    public static class ColumnReader implements PartitionReader {
        private final Iterator batches;

        ColumnReader(Iterator batches) {
            this.batches = batches;
        }

        public boolean next() {
            return batches.hasNext();
        }

        public Object get() {
            ColumnarBatch batch = (ColumnarBatch) batches.next();
            ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
            ColumnVector[] columns = new ColumnVector[rows.getValueVector().getField().getChildren().size()];
            for (int i = 0; i < columns.length; i++) columns[i] = rows.getChild(i);
            return new ColumnarBatch(columns, batch.numRows());
        }

        public void close() {}
    }
}
